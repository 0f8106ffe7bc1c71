"""Simulated runs through the front door."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.catalogue import declared, simulable
from tests.integration.cli import bench, recorded

PAPER = ["mode=simulate", "cluster=bagua_paper", "network.bandwidth=10gbit", "run.steps=2"]

TOY = '''
from algorithms.base import Algorithm


class Toy(Algorithm):
    """Everyone sends its gradients to the next rank, and gets others from the last."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def communicate(self, bucket, comm, step):
        for _ in range(self.times):
            peers = [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
            received = comm.exchange(bucket.grad, peers)
            bucket.grad.copy_(received[0])
'''


def test_every_algorithm_at_128_ranks(tmp_path: Path) -> None:
    done = bench(tmp_path, "-m", *PAPER, "task=vgg16", f"algo={','.join(simulable())}", cold=True)
    assert done.returncode == 0, done.stderr
    for text in ("throughput", "exposed communication", "per step and rank", "projected", "simulated", "records.jsonl"):
        assert done.stdout.count(text) >= len(simulable())
    assert done.stdout.count("2 of 2 steps are QAdam's warm-up") == 1
    assert done.stdout.count("warm-up") == sum(declared(name).warm_up > 0 for name in simulable())
    found = recorded(tmp_path)
    assert [record["config"]["algo"]["name"] for record in found] == simulable()
    for record in found:
        assert (record["status"], record["source"], record["ranks"]) == ("done", "simulated", 128)
        assert sum(record["result"]["rank_counts"]) == 128
        assert record["result"]["samples_per_epoch"] == 1_281_167


def test_a_campaign_prints_a_line_per_run(tmp_path: Path) -> None:
    axes = "campaign.axes=['algo=ddp,bytegrad','network.bandwidth=1gbit,10gbit']"
    arguments = ["campaign=decision_map", "task=vgg16", "cluster=4x1", axes]
    done = bench(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout
    assert lines[2].startswith("[3/4] algo.name=bytegrad network.bandwidth=1gbit: ")
    assert all("samples/s simulated, step " in line and "exposed communication" in line for line in lines)
    assert last == f"records: {tmp_path}/results/decision_map/records.jsonl"
    again = bench(tmp_path, *arguments)
    assert again.stdout == f"{last} (4 were done before)\n"


def test_a_new_algorithm_is_simulated_as_it_is(tmp_path: Path) -> None:
    """One file and its configuration, outside the repository; nothing else knows about it."""
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "conf" / "algo" / "toy.yaml").write_text(
        "_target_: toy.Toy\ntimes: 1\nabout: {title: Toy, same_update: false}\n"
    )
    (tmp_path / "toy.py").write_text(TOY)
    arguments = ["--config-dir", str(tmp_path / "conf"), *PAPER, "task=vgg16", "algo=toy", "cluster.ranks_per_server=1"]
    for times in (1, 3):
        done = bench(tmp_path, *arguments, f"algo.times={times}", env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
    once, thrice = (record["result"] for record in recorded(tmp_path))
    assert once["bytes_per_step"][0]["flat"] == pytest.approx(2 * 4 * 138_357_544, rel=1e-6)
    assert thrice["bytes_per_step"][0]["flat"] == 3 * once["bytes_per_step"][0]["flat"]
    exposed = [result["step_seconds"][0] for result in (once, thrice)]
    assert 2 < exposed[1] / exposed[0] < 3.1


def test_a_schedule_is_not_run(tmp_path: Path) -> None:
    done = bench(tmp_path, "algo=byteps")
    assert done.returncode == 2
    assert "allowed: simulate" in done.stderr


@pytest.mark.parametrize("option", ["compression=fp16", "autotune=true"])
def test_what_a_schedule_does_not_know_is_not_simulated(tmp_path: Path, option: str) -> None:
    done = bench(tmp_path, *PAPER, "algo=horovod", f"algo.{option}")
    assert done.returncode == 2
    assert f"algo.{option}: mode=simulate does not know what it does; allowed: " in done.stderr
