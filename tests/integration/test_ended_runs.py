"""Runs that are interrupted, killed or stuck end at once, are recorded, and leave nothing behind."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bagua_bench.results import records
from tests.integration.cli import PATIENCE, Started, leftovers, python, recorded, training, wait_for

LONG = ["task=quadratic", "run.steps=1000000", "run.warmup=0"]
SOON = "run.timeout=10s"  # only where a rank is waited for in vain: on a busy machine they start unequally late
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
    assert parent.wait(PATIENCE) == 130
    assert time.monotonic() - began < 5, "the promise to the user"
    assert not any(lives(worker) for worker in found)
    assert [(r["status"], r["reason"]) for r in recorded(tmp_path)] == [("failed", "interrupted")]


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # somebody has just waited for it
        return False


def test_terminate_is_like_interrupt(running: Running, tmp_path: Path) -> None:
    parent, _ = running
    parent.terminate()
    parent.wait(PATIENCE)
    assert leftovers(tmp_path) == []
    assert [r["status"] for r in recorded(tmp_path)] == ["failed"]


def test_a_killed_rank_ends_the_run_with_its_name(cold: Running, tmp_path: Path) -> None:
    parent, found = cold
    victim = next(p for p in found if p.environ()["RANK"] == "1")
    victim.kill()
    assert parent.wait(PATIENCE) == 1
    [record] = recorded(tmp_path)
    assert record["reason"] == "rank 1: killed by SIGKILL"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("running", "reason"),
    [
        ([SOON], r"rank \d: CommError: .*"),
        ([SOON, "algo=ddp", "transport=bagua_net"], r"rank \d: .*bagua_net \w+: .*"),
    ],
    indirect=["running"],
    ids=["bytegrad", "ddp over bagua_net"],
)
def test_a_stopped_rank_ends_the_run_after_the_time_out(running: Running, tmp_path: Path, reason: str) -> None:
    parent, found = running
    found[0].suspend()
    assert parent.wait(PATIENCE) == 1
    [record] = recorded(tmp_path)
    assert re.fullmatch(reason, record["reason"]), "one line"
    assert leftovers(tmp_path) == []


def test_a_killed_parent_leaves_nothing_behind(running: Running, tmp_path: Path) -> None:
    parent, found = running
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(found, PATIENCE)[1] == []
    wait_for(lambda: leftovers(tmp_path) == [])


LIMITED = """
import resource, runpy, sys
sys.argv = ["bagua_bench", *sys.argv[1:]]
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
runpy.run_module("bagua_bench", run_name="__main__", alter_sys=True)
"""
SIMULATED = ["mode=simulate", "task=vgg16", "run.steps=2"]


def filled(folder: Path, campaign: str, size: int) -> Path:
    """A file of records to which no byte may be added once files are limited to this size."""
    path = folder / "results" / campaign / "records.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n" * size)
    return path


def test_a_record_for_which_there_is_no_room_is_kept_elsewhere_and_the_result_is_shown(tmp_path: Path) -> None:
    path = filled(tmp_path, "runs", 2**20)
    (tmp_path / "aside").mkdir()
    done = python(
        tmp_path, "-c", LIMITED.format(most=2**20), *SIMULATED, cold=True, env={"TMPDIR": str(tmp_path / "aside")}
    )
    assert done.returncode == 1, done.stderr
    assert "throughput" in done.stdout and "samples/s" in done.stdout
    line = done.stderr.splitlines()[-1]
    [aside] = (tmp_path / "aside").glob("*/records.jsonl")
    assert line == (
        f"{path}: the record cannot be written: File too large; it is in {aside}, to be appended to that file"
    )
    assert "Traceback" not in done.stderr
    assert path.stat().st_size == 2**20, "nothing of it"
    [record] = records.read([aside])
    assert record["status"] == "done" and record["result"]["throughput"] > 0


def test_a_record_that_fits_nowhere_is_printed(tmp_path: Path) -> None:
    filled(tmp_path, "runs", 64)
    done = python(tmp_path, "-c", LIMITED.format(most=64), *SIMULATED, cold=True)
    assert done.returncode == 1 and "throughput" in done.stdout
    *_, printed, line = done.stderr.splitlines()
    assert json.loads(printed)["result"]["throughput"] > 0
    assert line.endswith("File too large; it is the line above, to be appended to that file")


def test_a_campaign_ends_where_its_records_cannot_be_written(tmp_path: Path) -> None:
    filled(tmp_path, "quick", 2**20)
    asked = ["campaign=quick", "mode=simulate", "task=vgg16", "transport=gloo"]
    done = python(tmp_path, "-c", LIMITED.format(most=2**20), *asked, cold=True, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("samples/s") == 1, "the first run was shown, and no second was begun"
    assert len(done.stderr.splitlines()) == 1 and "File too large" in done.stderr
