"""Whole runs on an emulated network, through the front door."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.emulated import cleared, leftovers, needs
from tests.integration.cli import PATIENCE, TINY, bench, recorded, start, wait_for, workers

pytestmark = needs("auto", inside=False)
VGG = ["task=vgg16", "task.scale=tiny", "run.steps=4", "run.warmup=1", "run.evaluate=false"]


def test_a_run_records_what_was_asked_and_what_was_measured(tmp_path: Path) -> None:
    before = cleared()
    done = bench(tmp_path, *VGG, "algo=ddp", "network.bandwidth=100mbit", "network.latency=5ms")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.replace("│", " ").split())  # lines of the table may be wrapped
    assert "asked: 100 Mbit/s, 5 ms one way measured: " in said and "Mbit/s, round trip 1" in said
    assert leftovers() == before
    [record] = recorded(tmp_path)
    measured, result = record["network"]["measured"], record["result"]
    assert record["network"]["asked"]["bandwidth"] == 1e8
    assert record["network"]["asked"]["backend"] == measured["backend"] in ("netem", "link"), "what auto chose"
    assert measured["drops"] == 0
    for when in ("before", "after"):
        assert [(pair["from"], pair["to"]) for pair in measured[when]] == [(0, 1), (1, 0)]
        for pair in measured[when]:
            assert pair["goodput"] == pytest.approx(1e8 * 1448 / 1500, rel=0.1)
            assert 9.9e-3 < pair["rtt"] < 20e-3
    assert measured["traffic"]["counted"] == [rank["flat"] for rank in result["bytes_per_step"]]
    assert measured["traffic"]["interface"] == pytest.approx(measured["traffic"]["counted"], rel=0.1)
    least = result["bytes_per_step"][0]["flat"] * 8 / 1e8 + 2 * 5e-3
    assert min(result["step_seconds"]) > least, "no step is faster than its network"


def test_servers_of_two_ranks_leaders_between_them_and_a_straggler(tmp_path: Path) -> None:
    # The straggler waits for a multiple of its step before: so many steps that one odd one, the last, hardly counts.
    slow = ["cluster=2x2", "network.bandwidth=50mbit", "cluster.slow_ranks.1=10", "run.steps=12"]
    done = bench(tmp_path, *VGG, "algo=bytegrad", *slow)
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    traffic, result = record["network"]["measured"]["traffic"], record["result"]
    ranks = result["bytes_per_step"]
    assert [rank["inter"] > 0 for rank in ranks] == [True, False, True, False]
    assert traffic["interface"] == pytest.approx([ranks[0]["inter"], ranks[2]["inter"]], rel=0.1), (
        "what stays inside a server does not pass its link"
    )
    phases = result["phase_seconds"]
    assert phases["forward"] > phases["backward"], "the straggler waits before its forward pass"


def test_an_emulator_that_dies_ends_the_run(tmp_path: Path) -> None:
    before = cleared()
    parent = start(tmp_path, *TINY, "run.steps=100000", "run.timeout=5s", "network.latency=1ms", "network.backend=link")
    wait_for(lambda: has_begun(parent))
    [relay] = [p for p in psutil.Process(parent.pid).children() if "bagua_bench.network.relay" in p.cmdline()]
    relay.kill()
    assert parent.wait(PATIENCE) == 1
    assert recorded(tmp_path)[0]["reason"] == "network: the link emulator ended with exit code -9"
    assert leftovers() == before


def has_begun(parent: subprocess.Popen[bytes]) -> bool:
    assert parent.poll() is None
    return len(workers(parent.pid)) == 2


SLEEPING = ["mode=emulate", *VGG, "run.warmup=0", "task.step_seconds=0.01"]
TWO_SYSTEMS = "campaign.axes=['network.latency=1ms,2ms','algo=ddp,bytegrad']"


def test_emulated_runs_in_a_row_share_their_network_and_are_measured_by_themselves(tmp_path: Path) -> None:
    before = cleared()
    done = bench(tmp_path, "campaign=quick", "campaign.rounds=1", *SLEEPING, TWO_SYSTEMS)
    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path, "quick")
    names = [(r["config"]["network"]["latency"], r["config"]["algo"]["name"], r["status"]) for r in found]
    assert names == [(delay, algo, "done") for delay in (1e-3, 2e-3) for algo in ("ddp", "bytegrad")]
    networks = [record["network"]["measured"] for record in found]
    assert networks[1]["before"] == networks[0]["after"], "taken less than a minute ago"
    assert networks[2]["before"] not in (networks[0]["before"], networks[0]["after"], None), "another network"
    sent = [record["result"]["bytes_per_step"][0]["flat"] for record in found]
    assert sent[0] > 3 * sent[1] and sent[:2] == sent[2:]
    assert leftovers() == before


def test_a_failure_costs_the_runs_behind_it_nothing(tmp_path: Path) -> None:
    parent = start(
        tmp_path, "campaign=quick", "campaign.rounds=1", *SLEEPING, "run.steps=100",
        "network.latency=1ms", "campaign.axes=['algo=ddp,bytegrad,gradient_allreduce']",
    )  # fmt: skip
    wait_for(lambda: has_begun(parent))
    workers(parent.pid)[1].kill()
    assert parent.wait(PATIENCE) == 1
    failed, *others = recorded(tmp_path, "quick")
    assert failed["reason"] in ("rank 0: killed by SIGKILL", "rank 1: killed by SIGKILL")
    assert [record["status"] for record in others] == ["done", "done"]
