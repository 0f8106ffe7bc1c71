"""Kills parts of elastic runs at random moments: `python -m tools.elastic_kills [NUMBER] [SEED]`.

Every run has three emulated servers and is killed at several times: a rank, or the agent of a server with its ranks.
Algorithms that can go on without a restart do so in every other run of theirs.
Exit code 0 if every run ended, done, with every step taken, and nothing is left on this machine.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.emulated import cleared, why_not
from tests.integration.cli import recorded, start
from tools.kills import asked, processes

RUN = ["task=quadratic", "task.lr=0.02", "run.evaluate=false", "run.elastic=true", "run.timeout=10s",
       "cluster.servers=3", "elastic.every=200", "elastic.restarts=20", "network.bandwidth=100mbit",
       "network.latency=1ms"]  # fmt: skip
WAYS = [
    ["algo=gradient_allreduce"],
    ["algo=async", "elastic.regroup=true"],
    ["algo=qadam", "algo.warmup_steps=1000"],
    ["algo=decentralized", "elastic.regroup=true"],
    ["algo=low_precision_decentralized"],
    ["algo=low_precision_decentralized", "elastic.regroup=true"],
    ["algo=async"],
    ["algo=decentralized"],
]
VICTIMS = {"rank": "bagua_bench.worker.rank", "server": "bagua_bench.launch.agent"}
KILLS = 5  # in a run
BETWEEN = 6.0  # seconds, at most
STEPS = 6000
PATIENCE = 240.0  # seconds for a run to end after its last kill


def hurt(parent: subprocess.Popen[bytes], rng: random.Random) -> str:
    """Kill a part of a run at a random moment; what it was, empty if the run is over."""
    time.sleep(rng.uniform(0.2, BETWEEN))
    kind = rng.choice(list(VICTIMS))
    deadline = time.monotonic() + PATIENCE
    while parent.poll() is None and time.monotonic() < deadline:
        found = [one for one in processes(parent, VICTIMS[kind]) if one.is_running()]
        if kind == "rank":
            found = [one for one in found if "bagua_bench.launch.agent" not in one.cmdline()]
        if found:
            rng.choice(sorted(found, key=lambda one: one.pid)).send_signal(9)
            return kind
        time.sleep(0.05)
    return ""


def main() -> int:
    """Kill as often as asked; 0 if every run survived, or if this machine cannot build networks."""
    options = asked("tools.elastic_kills", __doc__).parse_args()
    if reason := why_not("auto"):
        print(f"skipped: {reason}")
        return 0
    rng, killed, wrong, count = random.Random(options.seed), Counter[str](), 0, 0
    before = cleared()
    while sum(killed.values()) < options.number:
        way = WAYS[count % len(WAYS)]
        count += 1
        with tempfile.TemporaryDirectory() as name:
            parent = start(Path(name), *RUN, *way, f"run.steps={STEPS}")
            begun, hits = time.monotonic(), list[str]()
            while len(hits) < KILLS and (what := hurt(parent, rng)):
                hits.append(what)
            killed.update(hits)
            said = verdict(parent, Path(name))
        left = {kind: now for kind, now in cleared().items() if now != before[kind]}
        wrong += bool(said or left)
        seconds = time.monotonic() - begun
        print(
            f"{' '.join(way)}: {' '.join(hits)}, {seconds:.0f} s: {said or 'done'}; {left or 'nothing left'}",
            flush=True,
        )
    print(f"{dict(killed)} killed in {count} runs, {wrong} of them wrong")
    return 1 if wrong else 0


def verdict(parent: subprocess.Popen[bytes], folder: Path) -> str:
    """What is wrong with a run; empty if it ended with all its steps."""
    try:
        code = parent.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        for process in psutil.Process(parent.pid).children(recursive=True):
            process.kill()
        parent.kill()
        parent.wait()
        return f"hangs: not over after {PATIENCE:.0f} s"
    [record] = recorded(folder)
    if code or record["status"] != "done":
        return f"exit code {code}: {record['reason']}"
    taken = len(record["result"]["losses"])
    return "" if taken == STEPS else f"{taken} of {STEPS} steps"


if __name__ == "__main__":
    sys.exit(main())
