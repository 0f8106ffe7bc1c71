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
from bagua_bench.processes.disturbance import Busy, Disturbance
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


def test_how_busy_the_cores_were() -> None:
    cores, watch, began = len(os.sched_getaffinity(0)), Busy(), time.monotonic()
    subprocess.run([sys.executable, "-c", SPIN.format(1)], check=True)
    taken = time.monotonic() - began
    assert 0.9 / (taken * cores) - 0.05 < watch.share() <= 1


def test_idle_time_is_that_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cores in 4 s, one was idle for 3 s and waited for a disk for 0.5 s, the other was idle for 1 s."""
    counts = iter([(0.0, 100.0), (4.0, 100 + (3 + 0.5 + 1) / 2)])
    monkeypatch.setattr(Busy, "_idle", lambda self: next(counts))
    assert Busy().share() == pytest.approx(1 - 4.5 / 8)


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


def waits(command: list[str], folder: Path, begun: Path) -> None:
    """Check that a command waits while another process times a run, says so, and then does its work."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(HOME)}
    environment.pop(alone.TOGETHER)
    hold = "import sys\nfrom bagua_bench.processes.alone import alone\nwith alone(print): print(); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], cwd=HOME, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdout.readline()
    run = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    lines = iter(run.stderr.readline, "")
    said = next(line for line in lines if "waiting" in line)
    assert f"waiting for the timed run of process {holder.pid} (BAGUA_BENCH_TOGETHER=1 does not)" in said
    assert not begun.exists()
    holder.stdin.close()
    rest = "".join(lines)
    assert run.wait(600) == 0, rest
    assert holder.wait(300) == 0


def test_a_timed_run_waits_for_another_one(tmp_path: Path) -> None:
    waits([*COMMAND, *TINY], tmp_path, tmp_path / "results" / "runs" / "records.jsonl")
    [record] = recorded(tmp_path)
    assert record["disturbance"]["cores"] == len(os.sched_getaffinity(0))


def test_a_timed_part_of_another_command_waits_too(tmp_path: Path) -> None:
    part = (
        "from pathlib import Path; from bagua_bench.processes import together; "
        "together.run([['-c', 'print(1)']], Path('logs'), 60)"
    )
    waits([sys.executable, "-c", part], tmp_path, tmp_path / "logs" / "0.log")
    assert (tmp_path / "logs" / "0.log").read_text() == "1\n"


def test_nobody_waits_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(alone.TOGETHER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with alone.alone(pytest.fail):
        pass
