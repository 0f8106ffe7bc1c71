"""Shared by all tests."""

import os
import signal
from typing import Any

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


GROUPS = {  # tests that one worker of pytest-xdist runs one after the other
    "tests/integration/test_ended_runs.py": "machine",  # they look at what remains on the machine, or change it
    "tests/integration/test_kills.py": "machine",
    "tests/integration/test_network.py": "machine",
    "tests/integration/test_shaped_runs.py": "machine",
    "tests/transport/test_plugin.py::test_where_packets_are_lost": "machine",
    "tests/integration/test_own_model.py": "own model",  # they read what one run found
    "tests/unit/test_imports.py": "imports",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Marks of groups are not used: pytest-xdist 3.8 does not see them under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for begin, group in GROUPS.items() if nodeid.startswith(begin)), nodeid)

    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """One warm process for all workers of pytest-xdist, which starts while they do."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        warm.address()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
