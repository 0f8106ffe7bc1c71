"""Shared by all tests."""

import os
import signal

import pytest
import torch

if not torch.cuda.is_available():  # before anybody imports Triton: it decides then whether kernels are interpreted
    os.environ["TRITON_INTERPRET"] = "1"

# Started as a job in a shell's background, the tests would hand down that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
