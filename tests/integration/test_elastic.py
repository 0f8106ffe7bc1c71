"""Elastic runs whose ranks and servers are killed, through the front door and in a user's own script."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.emulated import cleared, needs
from tests.integration.cli import PATIENCE, begun, bench, folder_of, leftovers, python, recorded, wait_for, workers
from tests.warm import client as warm

HOME = Path(__file__).resolve().parents[2]
VGG = [
    "task=vgg16",
    "cluster.slow_ranks.0=5",
    "task.scale=tiny",
    "run.evaluate=false",
    "run.elastic=true",
    "elastic.every=5",
]


def test_a_server_that_is_lost_and_comes_back(tmp_path: Path) -> None:
    qadam = ["algo=qadam", "algo.warmup_steps=20", "algo.eps=1e-2"]
    done = bench(tmp_path, *VGG, *qadam, "cluster.servers=3", "run.steps=200", "elastic.outages=[1@12-40]")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    found = record["result"]["elastic"]
    ranks = [life["ranks"] for life in found["lives"]]
    assert (ranks[0], min(ranks), ranks[-1]) == (3, 2, 3), found
    events = [event["event"] for event in found["interruptions"] if event["event"] != "a rank failed"]
    assert events == ["server 1 is lost", "server 1 is back"]
    assert found["lives"][0]["first"] == 1 and found["lives"][-1]["last"] == 200
    for before, event, after in zip(found["lives"], found["interruptions"], found["lives"][1:], strict=False):
        assert event["step"] == before["last"] and event["repeated"] == before["last"] - after["first"] + 1
        assert 0 <= event["repeated"] <= 5 and (after["first"] - 1) % 5 == 0 and event["seconds"] > 0
    losses = record["result"]["losses"]
    assert len(losses) == 200 and losses[-1] < losses[0]
    assert record["result"]["checks"]["replicas"] == "equal"
    assert len(record["result"]["step_seconds"]) == 200 - found["lives"][-1]["first"] + 1
    assert "server 1 is lost: " in done.stdout and leftovers(tmp_path) == []


@needs("auto", inside=False)
def test_servers_of_an_emulated_network_are_lost_the_first_one_too(tmp_path: Path) -> None:
    before = cleared()
    done = bench(tmp_path, *VGG, "algo=gradient_allreduce", "cluster.servers=3", "run.steps=200",
                 "network.bandwidth=1gbit", "network.latency=1ms", "elastic.outages=[0@8-40]")  # fmt: skip
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    found = record["result"]["elastic"]
    ranks = [life["ranks"] for life in found["lives"]]
    assert (ranks[0], min(ranks), ranks[-1]) == (3, 2, 3), found
    assert record["network"]["measured"]["before"]
    assert cleared() == before


def test_a_killed_rank_costs_at_most_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    given = ["algo=async", "run.steps=60", "elastic.servers=2"]  # the other one, if it came first, would begin alone
    with begun(tmp_path, *VGG, *given) as parent:
        trained(parent).send_signal(signal.SIGKILL)
        assert parent.wait(PATIENCE) == 0
    [record] = recorded(tmp_path)
    found = record["result"]["elastic"]
    assert len(found["lives"]) >= 2 and {life["ranks"] for life in found["lives"]} == {2}
    assert all(event["repeated"] <= 5 for event in found["interruptions"])
    assert leftovers(tmp_path) == []


def trained(parent: warm.Running) -> psutil.Process:
    """A worker of a run, once it has taken steps: its checkpoints are there."""
    found: list[psutil.Process] = []

    def has_one() -> bool:
        assert parent.poll() is None
        found[:] = workers(parent.pid)
        return len(found) == 2 and any(folder_of(found[0]).glob("checkpoints/*/.metadata"))

    wait_for(has_one)
    return found[-1]


def test_ranks_that_fail_again_and_again_end_the_run_with_their_reason(tmp_path: Path) -> None:
    needed = ["elastic.restarts=1", "elastic.servers=2"]  # one alone has nothing to encode, and would train on with NaN
    given = ["algo=bytegrad", "run.steps=20", *needed, "task.lr=1e30", "run.timeout=20s"]
    failed = bench(tmp_path, *VGG, *given)
    assert failed.returncode == 1
    [record] = recorded(tmp_path)
    assert record["status"] == "failed" and "MinMaxUInt8: the tensor holds NaN" in record["reason"], record["reason"]
    assert leftovers(tmp_path) == []


LOOKS_AWAY = """
import runpy, sys
from bagua_bench.launch import elastic
from bagua_bench.processes import mailbox

keep_plan = elastic._Run._keep_plan

def when_it_is_over(run):
    if run._diary.step:
        mailbox.wait(run._folder / "result-0.json")
    keep_plan(run)

elastic._Run._keep_plan = when_it_is_over
sys.argv = ["bagua_bench", *sys.argv[1:]]
runpy.run_module("bagua_bench", run_name="__main__", alter_sys=True)
"""


def test_an_outage_that_the_run_did_not_live_to_see_is_no_success(tmp_path: Path) -> None:
    """Who has planned it looks away until the run is over: otherwise it may just come in time."""
    given = ["task=quadratic", "algo=gradient_allreduce", "run.elastic=true", "run.steps=3", "elastic.outages=[1@2]"]
    done = python(tmp_path, "-c", LOOKS_AWAY, *given, cold=True)
    [record] = recorded(tmp_path)
    assert done.returncode == 1 and "elastic.outages=1@2: the run was over" in record["reason"]


def test_a_named_folder_is_what_the_next_run_goes_on_from(tmp_path: Path) -> None:
    given = ["task=quadratic", "algo=bytegrad", "run.elastic=true", "elastic.every=4", "elastic.folder=kept"]
    given += ["elastic.servers=2"]  # nobody begins alone
    for steps in (10, 14):
        assert bench(tmp_path, *given, f"run.steps={steps}").returncode == 0
    first, second = recorded(tmp_path)
    assert first["result"]["elastic"]["lives"] == [{"ranks": 2, "first": 1, "last": 10}]
    assert second["result"]["elastic"]["lives"] == [{"ranks": 2, "first": 9, "last": 14}]
    assert second["result"]["losses"][:8] == first["result"]["losses"][:8]
    assert bench(tmp_path, *given, "run.steps=8").returncode == 1
    [*_, third] = recorded(tmp_path)
    assert third["status"] == "failed" and "elastic.folder=" in third["reason"] and "step 12" in third["reason"]


def test_the_script_of_the_documentation_survives_a_kill(tmp_path: Path) -> None:
    """Under torchrun, as a user starts it: every sample of an epoch comes once in what the weights have seen."""
    page = (HOME / "docs" / "elastic.md").read_text()
    script = tmp_path / "train.py"
    found = re.search(r"<!-- script -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found
    script.write_text(found[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3",
               "--monitor-interval=0.1", str(script)]  # fmt: skip
    own = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    env = {**os.environ, **own}
    with (tmp_path / "out").open("w") as out:
        job = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            wait_for(lambda: any((tmp_path / "checkpoints").glob("*/.metadata")))
            ranks = [p for p in psutil.Process(job.pid).children() if str(script) in p.cmdline()]
            assert len(ranks) == 2
            ranks[1].send_signal(signal.SIGKILL)
            code = job.wait(PATIENCE)
        finally:
            os.killpg(job.pid, signal.SIGKILL) if job.poll() is None else None
    text = (tmp_path / "out").read_text()
    assert code == 0, text
    assert text.count("begins after step 0") == 2 and len(re.findall(r"begins after step [1-9]", text)) >= 2, text
    lines = [json.loads(line) for line in re.findall(r"\[\d+, \d+, \d+, \[[\d, ]+\]\]", text)]
    last = {(rank, step): indices for rank, step, epoch, indices in lines if epoch == 0}
    counted = Counter(itertools.chain.from_iterable(last.values()))
    assert set(counted.values()) == {1} and len(counted) == 480


@pytest.mark.parametrize("given", [["algo=ddp"], ["task=transformer", "task.sampler=random"]])
def test_what_cannot_go_on_is_refused_before_anything_starts(tmp_path: Path, given: list[str]) -> None:
    refused = bench(tmp_path, "run.elastic=true", *given)
    assert refused.returncode == 2 and refused.stderr.startswith("run.elastic=true: ")
    assert refused.stderr.count("\n") == 1
