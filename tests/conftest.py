"""Shared by all tests."""

import os

import pytest
import torch

if not torch.cuda.is_available():  # before anybody imports Triton: it decides then whether kernels are interpreted
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
