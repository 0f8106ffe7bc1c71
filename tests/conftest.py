"""Shared by all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from typing import Any

# Before torch and NumPy are imported: tests and what they start compute on one thread, like ranks side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from tests import side_by_side
from tests.covered import gcov
from tests.warm import client as warm

if gcov.ASKED in os.environ:
    gcov.end_gently()

if not torch.cuda.is_available():  # before Triton is imported and decides whether to interpret kernels
    os.environ["TRITON_INTERPRET"] = "1"

# The suite begins with the same seed every time, but examples also depend on which modules are imported by then: what
# fails is printed so that it can be repeated. `make nightly` draws others, ten times as many. None has a deadline: the
# machine may be busy.
settings.register_profile("suite", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=2000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile("suite")

# What the suite keeps for a user between runs does not outlive the tests, and none depends on what was there before.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="bagua-bench-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Tests run side by side, and none of them says how fast anything is.
os.environ["BAGUA_BENCH_TOGETHER"] = "1"

# Nor does what is printed depend on whose terminal that is.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
    os.environ.pop(name, None)

# As a background job of a shell, the tests ignore SIGINT and would pass that on to their child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

TURN = pytest.StashKey[side_by_side.Turn | None]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups are not set by marks, because pytest-xdist 3.8 does not see them under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return side_by_side.group(nodeid)

    return Scheduling(config, log)


def _turn(config: pytest.Config) -> side_by_side.Turn | None:
    """A worker's turn; None where tests run one after the other.

    A pytest that a test starts runs in that one's turn. If it took one of its own, it would wait behind a worker that
    waits to be alone, and that one for the test.
    """
    if TURN not in config.stash:
        config.stash[TURN] = side_by_side.Turn() if hasattr(config, "workerinput") else None
    return config.stash[TURN]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    turn = _turn(item.config)
    if turn is None:
        return (yield)
    turn.take(item.nodeid)
    try:
        return (yield)
    finally:
        turn.leave("" if nextitem is None else nextitem.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Start one warm process for all workers of pytest-xdist while they start, too."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        warm.address()


@pytest.fixture(autouse=True)
def _the_same_whatever_ran_before() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
