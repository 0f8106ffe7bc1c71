"""What disturbs a timed run is seen, and two of them keep out of each other's way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bagua_bench.processes import alone, disturbance
from bagua_bench.processes.disturbance import Disturbance
from tests.catalogue import HOME
from tests.integration.cli import COMMAND, TINY, recorded

SPIN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"


def test_what_this_process_and_its_children_compute_is_their_own() -> None:
    before = disturbance._own()
    subprocess.run([sys.executable, "-c", SPIN.format(0.5)], check=True)
    assert disturbance._own() - before > 0.4
    living = subprocess.Popen([sys.executable, "-c", SPIN.format(60)])
    try:
        began = disturbance._own()
        while psutil.Process(living.pid).cpu_times().user < 0.5:
            time.sleep(0.05)
        assert disturbance._own() - began > 0.2
    finally:
        living.kill()
        living.wait()


def test_what_strangers_compute_is_a_disturbance() -> None:
    """A grandchild whose parent has ended is nobody's; on a machine that is busy anyway, others count, too."""
    spin = f"[sys.executable, '-c', {SPIN.format(60)!r}]"
    leave = f"import subprocess, sys; print(subprocess.Popen({spin}, stdout=subprocess.DEVNULL).pid)"
    watch = Disturbance()
    stranger = int(subprocess.run([sys.executable, "-c", leave], check=True, stdout=subprocess.PIPE).stdout)
    try:
        while psutil.Process(stranger).cpu_times().user < 1:
            time.sleep(0.05)
        found = watch.found()
    finally:
        psutil.Process(stranger).kill()
    cores = len(os.sched_getaffinity(0))
    assert found["cores"] == cores and found["others"] > disturbance.OTHERS * cores
    assert f"of {cores} cores busy" in found["flags"][0]


@pytest.mark.parametrize(
    ("busy", "own", "stolen", "flags"),
    [
        (8.0, 8.0, 0.0, []),
        (8.2, 8.0, 0.1, []),
        (9.0, 8.0, 0.0, ["other processes kept 0.25 of 2 cores busy"]),
        (8.0, 8.0, 0.8, ["the hypervisor gave 10 % of the cores' time to others"]),
        (8.0, 9.0, 0.0, []),
    ],
)
def test_what_counts_as_one(
    busy: float, own: float, stolen: float, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four seconds on two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    counts = iter([disturbance._Counts(0.0, 5.0, 1.0, 2.0), disturbance._Counts(4.0, 5 + busy, 1 + stolen, 2 + own)])
    monkeypatch.setattr(Disturbance, "_counts", lambda self: next(counts))
    assert Disturbance().found()["flags"] == flags


def test_a_timed_run_waits_for_another_one(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop(alone.TOGETHER)
    hold = "import sys\nfrom bagua_bench.processes.alone import alone\nwith alone(print): print(); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], cwd=HOME, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdout.readline()
    run = subprocess.Popen([*COMMAND, *TINY], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    lines = iter(run.stderr.readline, "")
    said = next(line for line in lines if "waiting" in line)
    assert f"waiting for the timed run of process {holder.pid} (BAGUA_BENCH_TOGETHER=1 does not)" in said
    assert not (tmp_path / "results" / "runs" / "records.jsonl").exists()
    holder.stdin.close()
    rest = "".join(lines)
    assert run.wait(240) == 0, rest
    assert holder.wait(60) == 0
    [record] = recorded(tmp_path)
    assert record["disturbance"]["cores"] == len(os.sched_getaffinity(0))


def test_nobody_waits_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(alone.TOGETHER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with alone.alone(pytest.fail):
        pass
