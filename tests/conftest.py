"""Shared by all tests."""

import os
import signal

# Before torch and NumPy come: tests and what they start compute on one thread, as ranks beside each other do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from tests.covered import gcov
from tests.warm import client as warm

if gcov.ASKED in os.environ:
    gcov.end_gently()

if not torch.cuda.is_available():  # before anybody imports Triton: it decides then whether kernels are interpreted
    os.environ["TRITON_INTERPRET"] = "1"

# The suite draws the same examples every time; `make nightly` others, and ten times as many.
settings.register_profile("suite", derandomize=True)
settings.register_profile("nightly", max_examples=2000, derandomize=False, print_blob=True)
settings.load_profile("suite")

# Started as a job in a shell's background, the tests would hand down that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """One warm process for all workers of pytest-xdist, which starts while they do."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        warm.address()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
