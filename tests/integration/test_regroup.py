"""Elastic runs that go on without a restart, through the front door and in a user's own script."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.emulated import cleared, needs
from tests.integration.cli import bench, leftovers, recorded, start, workers

HOME = Path(__file__).resolve().parents[2]
RUN = ["run.evaluate=false", "run.elastic=true", "elastic.regroup=true", "elastic.every=1000", "cluster.servers=3"]
PACED = [f"cluster.slow_ranks.{server}=4" for server in range(3)]  # so that a server can start in the meantime


@needs("auto", inside=False)
def test_a_server_of_an_emulated_network_is_lost_and_comes_back(tmp_path: Path) -> None:
    """The first one, whose rank is usually rank 0."""
    before = cleared()
    done = bench(tmp_path, "task=vgg16", "task.scale=tiny", *RUN, *PACED, "algo=decentralized", "run.steps=130",
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
    given = ["task=vgg16", "task.scale=tiny", *RUN, *PACED, f"algo={algo}", "run.steps=120"]
    parent = start(tmp_path, *given, stderr=subprocess.DEVNULL)
    try:
        victim = trained(parent)
        victim.send_signal(signal.SIGKILL)
        assert parent.wait(150) == 0
    finally:
        parent.kill()
        parent.wait()
    [record] = recorded(tmp_path)
    lives = record["result"]["elastic"]["lives"]
    assert lives[0]["ranks"] == lives[-1]["ranks"] == 3 and len(lives) >= 2
    assert_no_step_is_repeated(record)
    assert leftovers(tmp_path) == []


def trained(parent: subprocess.Popen[bytes]) -> psutil.Process:
    """A worker of a run, once it has taken steps."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert parent.poll() is None
        found = workers(parent.pid)
        if len(found) == 3:
            events = Path(found[0].cmdline()[-2]) / "progress-0.jsonl"
            if events.exists() and events.read_text().count('"training"') > 5:
                return found[-1]
        time.sleep(0.05)
    raise AssertionError("no step in time")


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
import torch.distributed

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
    running: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, script: Path = script) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), *arguments]
        with (tmp_path / f"out-{len(running)}").open("w") as out:
            running.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out))
        return running[-1]

    def text(number: int) -> str:
        return (tmp_path / f"out-{number}").read_text()

    try:
        begin("keep", "127.0.0.1")
        wait_for(lambda: "port " in text(0))
        place = ["127.0.0.1", text(0).split()[1]]
        ranks = [begin(*place) for _ in range(3)]
        (tmp_path / "late.py").write_text(WAITING + found[1])
        late = begin(*place, script=tmp_path / "late.py")
        wait_for(lambda: any(len(text(k).splitlines()) > 20 for k in (1, 2, 3)))
        ranks[2].send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        codes = [one.wait(150) for one in (ranks[0], ranks[1], late)]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert codes == [0, 0, 0], [text(k) for k in range(5)]
    assert "3 of 3" in text(4) or "rank 2 of 3" in text(4), text(4)
    told = [[json.loads(line) for line in re.findall(r"^\[.*\]$", text(k), re.MULTILINE)] for k in range(1, 5)]
    had = [Counter(number for epoch, numbers in lines if epoch == 0 for number in numbers) for lines in told]
    counted = sum(had, Counter())
    twice = {number for number, times in counted.items() if times > 1}
    assert len(counted) > 960 - 3 * 8 and set(counted.values()) <= {1, 2}
    assert twice <= {*had[2]}, "only what the lost one had may come again"


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
