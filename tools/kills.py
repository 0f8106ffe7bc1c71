"""Kills parts of shaped runs at random moments and looks for traces: `python -m tools.kills [NUMBER] [SEED]`.

The runs belong to one campaign, which every run resumes. Exit code 0 if, after every kill and the next start, this
machine is as before, no line of the records is torn, and the campaign has done every round once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from bagua_bench.network import namespaces
from bagua_bench.processes import owner
from tests.emulated import leftovers, why_not
from tests.integration.cli import bench, recorded, start

CAMPAIGN = ["campaign=quick", "task=quadratic", "run.steps=40", "run.warmup=1", "run.evaluate=false",
            "run.timeout=10s", "network.bandwidth=100mbit", "network.latency=1ms"]  # fmt: skip
LATEST = 22.0  # seconds after the start: by then a run is over, and the next one on its way
PATIENCE = 300.0  # seconds for a run to begin, or to end
VICTIMS = {"parent": "", "agent": "bagua_bench.launch.agent", "rank": "bagua_bench.worker.rank"}
PART = "part"  # a process that a rank has started
SIGNALS = (signal.SIGKILL, signal.SIGINT)


def kill_one(folder: Path, rng: random.Random, algo: str = "bytegrad", kinds: Sequence[str] = tuple(VICTIMS)) -> str:
    """Start the campaign, kill a part of it at a random moment, wait for the end; what was done as text."""
    known = len(whole_lines(folder))
    parent = start(folder, *CAMPAIGN, f"algo={algo}", "campaign.rounds=1000")
    kind, by, began = rng.choice(list(kinds)), rng.choice(SIGNALS), time.monotonic()
    if kind == "parent":
        time.sleep(rng.uniform(0, LATEST))
        parent.send_signal(by)
    else:
        wait_for(lambda: victims(parent, kind))
        time.sleep(rng.uniform(0, LATEST / 2))
        victim = hit(parent, kind, by, rng)
        wait(lambda: has_failed(folder, known) or not victim.is_running())
        time.sleep(rng.uniform(0, 3))  # the run ends by itself, or is interrupted on its way out
        parent.send_signal(signal.SIGINT)
    parent.wait(PATIENCE)
    return f"{kind} {by.name}, {time.monotonic() - began:.1f} s"


def victims(parent: subprocess.Popen[bytes], kind: str) -> list[psutil.Process]:
    """Processes of the run of one kind."""
    if kind != PART:
        return processes(parent, VICTIMS[kind])
    found = []
    for rank in processes(parent, VICTIMS["rank"]):
        with suppress(psutil.Error):
            found += rank.children(recursive=True)
    return found


def hit(parent: subprocess.Popen[bytes], kind: str, by: signal.Signals, rng: random.Random) -> psutil.Process:
    """Send a signal to one of the run's processes; another one, if it has just ended by itself."""
    while True:
        victim = rng.choice(wait_for(lambda: victims(parent, kind)))
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(by)
            return victim


def processes(parent: subprocess.Popen[bytes], module: str) -> list[psutil.Process]:
    """Processes of the run that execute a module."""
    found = []
    for process in psutil.Process(parent.pid).children(recursive=True):
        try:
            arguments = process.cmdline()
        except psutil.Error:
            continue
        if "-m" in arguments and arguments[arguments.index("-m") + 1] == module:
            found.append(process)
    return found


def lines(folder: Path) -> list[str]:
    path = folder / "results" / "quick" / "records.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def whole_lines(folder: Path) -> list[str]:
    """Without one that is being written."""
    return [line for line in lines(folder) if line.endswith("\n")]


def has_failed(folder: Path, known: int) -> bool:
    """Whether the newest record behind the `known` ones is of a failure."""
    new = whole_lines(folder)[known:]
    return bool(new) and bool(json.loads(new[-1])["status"] == "failed")


def wait(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(condition())


def wait_for(find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """The processes found in time; AssertionError if there are none."""
    assert wait(lambda: bool(find()))
    return find() or wait_for(find)


def clear() -> None:
    """Remove what killed processes left behind, as every start of the suite does."""
    namespaces.clear_stale()
    owner.folder().cleanup()


def problems(folder: Path, before: dict[str, list[str]]) -> list[str]:
    """Problems after a kill and `clear`."""
    found = []
    if not wait(lambda: leftovers()["processes"] == before["processes"]):
        found.append(f"processes: {leftovers()['processes']}")
    clear()
    found += [f"{kind}: {now}" for kind, now in leftovers().items() if now != before[kind]]
    for number, line in enumerate(lines(folder), 1):
        try:
            json.loads(line)
        except json.JSONDecodeError:
            found.append(f"records: line {number} is torn")
        if not line.endswith("\n"):
            found.append(f"records: line {number} has no end")
    return found


def resume(folder: Path, algo: str = "bytegrad") -> list[str]:
    """Have the campaign finish one more round than are done; problems of its records then."""
    rounds = 1 + len({r["round"] for r in recorded(folder, "quick") if r["status"] == "done"})
    done = bench(folder, *CAMPAIGN, f"algo={algo}", f"campaign.rounds={rounds}")
    counted = Counter(r["round"] for r in recorded(folder, "quick") if r["status"] == "done")
    expected = Counter(range(rounds))
    return [] if done.returncode == 0 and counted == expected else [f"resume: {done.stderr}; rounds done: {counted}"]


def asked(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments NUMBER and SEED of a killer."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("number", type=int, nargs="?", default=50, help="kills (default %(default)s)")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="of the choices (default %(default)s)")
    return parser


def main() -> int:
    """Kill as often as asked; 0 if nothing was left at any time, or if this machine cannot build networks."""
    parser = asked("tools.kills", __doc__)
    parser.add_argument("--algo", default="bytegrad", help="whose runs are killed (default %(default)s)")
    parser.add_argument("--parts", action="store_true", help="kill processes that ranks have started, too")
    options = parser.parse_args()
    kinds = [*VICTIMS, *[PART] * options.parts]
    if reason := why_not("auto"):
        print(f"skipped: {reason}")
        return 0
    clear()
    rng, seen, wrong = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), leftovers()
        for count in range(options.number):
            what = kill_one(folder, rng, options.algo, kinds)
            found = problems(folder, before)
            seen[what.partition(",")[0]] += 1
            wrong += bool(found)
            print(f"{count + 1}/{options.number} {what}: {'; '.join(found) or 'nothing left'}", flush=True)
        statuses = Counter(f"{r['status']}: {r['reason']}" for r in recorded(folder, "quick"))
        left = resume(folder, options.algo)
        print(f"{dict(seen)}; records: {dict(statuses)}; {left or 'resumed and finished'}")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
