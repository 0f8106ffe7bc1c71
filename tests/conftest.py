"""Shared by all tests."""

import os
import signal

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():  # before anybody imports Triton: it decides then whether kernels are interpreted
    os.environ["TRITON_INTERPRET"] = "1"

# The suite draws the same examples every time; `make nightly` others, and ten times as many.
settings.register_profile("suite", derandomize=True)
settings.register_profile("nightly", max_examples=2000, derandomize=False, print_blob=True)
settings.load_profile("suite")

# Started as a job in a shell's background, the tests would hand down that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
