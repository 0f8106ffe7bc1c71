"""The suite over the transport: every algorithm, the front door, the record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bagua_bench.comm.torch_groups import TorchComm
from tests.catalogue import resolved, short
from tests.contract.test_algorithms import ALIKE, NAMES, follow, train
from tests.integration.cli import TINY, bench, recorded
from tests.ranks import run

pytestmark = pytest.mark.usefixtures("built")


def _both(comm: TorchComm, names: list[str]) -> dict[str, bool]:
    gloo = TorchComm.create("gloo", 30.0)
    same = {}
    for name in names:
        cell = resolved(f"algo={name}", "task=quadratic", *short(name))
        same[name] = torch.equal(follow(comm, cell, torch.float32), follow(gloo, cell, torch.float32))
    return same


def test_algorithms_compute_over_it_what_they_compute_over_gloo() -> None:
    for same in run("bagua_net", 2, _both, ALIKE):
        assert same == dict.fromkeys(ALIKE, True)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(ALIKE)))
def test_averaging_in_rounds_over_it(name: str) -> None:
    results = run("bagua_net", 2, train, resolved(f"algo={name}", "task=quadratic", *short(name)), 100)
    mean = torch.stack([x for x, _ in results]).mean(0)
    for x, consensus in results:
        assert (x - mean).norm() <= consensus * mean.norm()


def test_from_the_command_line_with_counters_in_the_record(tmp_path: Path) -> None:
    done = bench(tmp_path, *TINY, "algo=ddp", "transport=bagua_net", "transport.streams=3")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    first, second = record["result"]["streams"]
    assert len(first["1"]) == len(second["0"]) == 3
    assert sum(s["bytes_sent"] for s in first["1"]) > 0


WRONG = (["transport.streams=4"], ["transport=bagua_net", "transport.streams=513"], ["transport.plugin=bagua_net"])


@pytest.mark.parametrize("arguments", WRONG)
def test_what_does_not_fit_is_said_before_anything_starts(tmp_path: Path, arguments: list[str]) -> None:
    done = bench(tmp_path, *TINY, *arguments)
    assert done.returncode != 0
    assert "transport." in done.stderr
    assert "allowed" in done.stderr
