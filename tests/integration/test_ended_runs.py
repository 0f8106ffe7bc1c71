"""Runs that are interrupted, killed or stuck end at once, are recorded, and leave nothing behind."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.cli import Started, leftovers, recorded, training

LONG = ["task=quadratic", "run.steps=1000000", "run.warmup=0", "run.timeout=6s"]
Running = tuple[Started, list[psutil.Process]]


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A long run, with both workers in their training loop."""
    with training(tmp_path, *LONG, *getattr(request, "param", ())) as found:
        yield found


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Running]:
    """Like `running`, with interpreters that have imported nothing."""
    with training(tmp_path, *LONG, cold=True) as found:
        yield found


def test_interrupt_ends_everything_and_is_recorded(cold: Running, tmp_path: Path) -> None:
    parent, found = cold
    began = time.monotonic()
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) == 130
    assert time.monotonic() - began < 5, "the promise to the user"
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in found)
    assert [(r["status"], r["reason"]) for r in recorded(tmp_path)] == [("failed", "interrupted")]


def test_terminate_is_like_interrupt(running: Running, tmp_path: Path) -> None:
    parent, _ = running
    parent.terminate()
    parent.wait(20)
    assert leftovers(tmp_path) == []
    assert [r["status"] for r in recorded(tmp_path)] == ["failed"]


def test_a_killed_rank_ends_the_run_with_its_name(cold: Running, tmp_path: Path) -> None:
    parent, found = cold
    victim = next(p for p in found if p.environ()["RANK"] == "1")
    victim.kill()
    assert parent.wait(20) == 1
    [record] = recorded(tmp_path)
    assert record["reason"] == "rank 1: killed by SIGKILL"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("running", "reason"),
    [([], r"rank \d: CommError: .*"), (["algo=ddp", "transport=bagua_net"], r"rank \d: .*bagua_net \w+: .*")],
    indirect=["running"],
    ids=["bytegrad", "ddp over bagua_net"],
)
def test_a_stopped_rank_ends_the_run_after_the_time_out(running: Running, tmp_path: Path, reason: str) -> None:
    parent, found = running
    found[0].suspend()
    assert parent.wait(60) == 1
    [record] = recorded(tmp_path)
    assert re.fullmatch(reason, record["reason"]), "one line"
    assert leftovers(tmp_path) == []


def test_a_killed_parent_leaves_nothing_behind(running: Running, tmp_path: Path) -> None:
    parent, found = running
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(found, 10)[1] == []
    deadline = time.monotonic() + 10
    while leftovers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert leftovers(tmp_path) == []
