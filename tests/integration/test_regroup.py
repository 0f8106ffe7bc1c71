"""Elastic runs that go on without a restart, through the front door and in a user's own script."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.emulated import cleared, needs
from tests.integration.cli import PATIENCE, begun, bench, folder_of, leftovers, recorded, server_of, wait_for, workers
from tests.warm import client as warm

HOME = Path(__file__).resolve().parents[2]
RUN = ["run.evaluate=false", "run.elastic=true", "elastic.regroup=true", "elastic.every=1000", "cluster.servers=3"]
PACED = ["cluster.slow_ranks.0=6", "cluster.slow_ranks.1=4", "cluster.slow_ranks.2=4"]
"""So slow that a server can start in the meantime; the one that is lost most of all, so that its rank is not ahead.

If it is rank 0, whose steps are those of the run, the others would otherwise have its last step still to take.
"""


@needs("auto", inside=False)
def test_a_server_of_an_emulated_network_is_lost_and_comes_back(tmp_path: Path) -> None:
    """The first one, whose rank is usually rank 0."""
    before = cleared()
    done = bench(tmp_path, "task=vgg16", "task.scale=tiny", *RUN, *PACED, "algo=decentralized", "run.steps=160",
                 "network.bandwidth=1gbit", "network.latency=1ms", "elastic.outages=[0@8-20]")  # fmt: skip
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    found = record["result"]["elastic"]
    assert [life["ranks"] for life in found["lives"]] == [3, 2, 3]
    assert [event["event"] for event in found["interruptions"]] == ["server 0 is lost", "server 0 is back"]
    assert_no_step_is_repeated(record)
    assert record["result"]["losses"][-1] < record["result"]["losses"][0]
    assert cleared() == before


def assert_no_step_is_repeated(record: dict[str, Any]) -> None:
    found, steps = record["result"]["elastic"], len(record["result"]["losses"])
    assert (found["lives"][0]["first"], found["lives"][-1]["last"]) == (1, steps)
    assert [event["repeated"] for event in found["interruptions"]] == [0] * (len(found["lives"]) - 1)
    for before, after in zip(found["lives"], found["lives"][1:], strict=False):
        assert after["first"] > before["last"]
    assert steps == record["config"]["run"]["steps"] + record["config"]["run"]["untimed"]


@pytest.mark.parametrize("algo", ["async", "low_precision_decentralized"])
def test_a_killed_rank_is_started_again_while_the_others_go_on(tmp_path: Path, algo: str) -> None:
    given = ["task=vgg16", "task.scale=tiny", *RUN, *PACED, f"algo={algo}", "run.steps=160"]
    with begun(tmp_path, *given) as parent:
        trained(parent).send_signal(signal.SIGKILL)
        assert parent.wait(PATIENCE) == 0
    [record] = recorded(tmp_path)
    lives = record["result"]["elastic"]["lives"]
    assert lives[0]["ranks"] == lives[-1]["ranks"] == 3 and len(lives) >= 2
    assert_no_step_is_repeated(record)
    assert leftovers(tmp_path) == []


def trained(parent: warm.Running) -> psutil.Process:
    """The worker of the slowest server of a run that has taken steps."""
    found: list[psutil.Process] = []

    def has_taken_some() -> bool:
        assert parent.poll() is None
        found[:] = workers(parent.pid)
        if len(found) < 3:
            return False
        events = folder_of(found[0]) / "progress-0.jsonl"
        return events.exists() and events.read_text().count('"training"') > 5

    wait_for(has_taken_some)
    [slowest] = [worker for worker in found if server_of(worker) == 0]
    return slowest


def test_ranks_that_fail_again_and_again_end_the_run_with_their_reason(tmp_path: Path) -> None:
    given = ["task=vgg16", "task.scale=tiny", *RUN, "algo=low_precision_decentralized", "run.steps=20", "task.lr=1e30"]
    needed = ["elastic.restarts=1", "elastic.servers=3"]  # one alone has nothing to encode, and would train on with NaN
    failed = bench(tmp_path, *given, *needed, "run.timeout=20s")
    assert failed.returncode == 1
    [record] = recorded(tmp_path)
    assert record["status"] == "failed" and "MinMaxUInt8: the tensor holds NaN" in record["reason"], record["reason"]
    assert leftovers(tmp_path) == []


def test_when_all_are_lost_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    given = ["task=quadratic", *RUN, "elastic.every=4", "algo=decentralized", "task.lr=0.02", "elastic.folder=kept"]
    given += ["elastic.servers=3"]  # nobody begins without the others
    for steps in (10, 14):
        done = bench(tmp_path, *given, f"run.steps={steps}")
        assert done.returncode == 0, done.stdout
    first, second = recorded(tmp_path)
    assert first["result"]["elastic"]["lives"] == [{"ranks": 3, "first": 1, "last": 10}]
    assert second["result"]["elastic"]["lives"] == [{"ranks": 3, "first": 9, "last": 14}]


WAITING = """
import pathlib
import time

import bagua_bench.engine.engine
import torch._dynamo  # the first optimizer would import it
import torch.distributed

pathlib.Path("waits").touch()
while not pathlib.Path("go").exists():  # what it imports takes longer than the training of the others
    time.sleep(0.02)
"""


def test_the_script_of_the_documentation_loses_one_and_takes_one_in(tmp_path: Path) -> None:
    """Of an epoch every sample comes once, but those that the lost one took after its last sign of life."""
    page = (HOME / "docs" / "elastic.md").read_text()
    script = tmp_path / "train.py"
    found = re.search(r"<!-- script without a restart -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found
    script.write_text(found[1])
    env = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(name: str, *arguments: str, script: Path = script) -> None:
        command = [sys.executable, str(script), *arguments]
        with (tmp_path / f"out-{name}").open("w") as out:
            running[name] = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out)

    def text(name: str) -> str:
        return (tmp_path / f"out-{name}").read_text()

    try:
        begin("keeper", "keep", "127.0.0.1")
        wait_for(lambda: "port " in text("keeper"))
        place = ["127.0.0.1", text("keeper").split()[1]]
        (tmp_path / "late.py").write_text(WAITING + found[1])
        begin("late", *place, script=tmp_path / "late.py")
        wait_for((tmp_path / "waits").exists)
        for name in ("first", "second", "lost"):
            begin(name, *place)
        wait_for(lambda: any(len(text(name).splitlines()) > 20 for name in ("first", "second", "lost")))
        running["lost"].send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        codes = [running[name].wait(PATIENCE) for name in ("first", "second", "late")]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert codes == [0, 0, 0], [text(name) for name in running]
    assert "3 of 3" in text("late") or "rank 2 of 3" in text("late"), text("late")
    told = {
        name: [json.loads(line) for line in re.findall(r"^\[.*\]$", text(name), re.MULTILINE)]
        for name in ("first", "second", "lost", "late")
    }
    had = {
        name: Counter(number for epoch, numbers in lines if epoch == 0 for number in numbers)
        for name, lines in told.items()
    }
    counted = sum(had.values(), Counter())
    twice = {number for number, times in counted.items() if times > 1}
    assert len(counted) > 960 - 3 * 8 and set(counted.values()) <= {1, 2}
    assert twice <= {*had["lost"]}, "only what the lost one had may come again"
