"""`bagua-bench overhead` through its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli import python


def rows(folder: Path, part: str, *arguments: str, cold: bool = False) -> list[dict[str, Any]]:
    done = python(folder, "-m", "bagua_bench.overhead", part, "--results", "out", *arguments, cold=cold)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "out" / f"{part}.json").read_text())
    assert report["machine"]["cores"] and "commit" in report["code"]
    found: list[dict[str, Any]] = report["rows"]
    return found


def test_time_shows_every_algorithm_beside_ddp_and_ddp_beside_itself(tmp_path: Path) -> None:
    algos = "gradient_allreduce,bytegrad"
    found = rows(tmp_path, "time", "--tasks", "transformer", "--rounds", "3", "--algos", algos, "task.scale=tiny")
    assert [row["algorithm"] for row in found] == algos.split(",")
    for row in found:
        assert row["rounds"] == 3 and all(len(seconds) == 3 for seconds in row["seconds"].values())
        assert row["low"] <= row["ratio"] <= row["high"] and row["same_low"] <= row["same"] <= row["same_high"]
        assert min(min(seconds) for seconds in row["seconds"].values()) > 0


def test_memory_counts_the_tensors_of_an_algorithm(tmp_path: Path) -> None:
    """Three replicas of weights are seen in the process's memory, not only in the account of them.

    In processes of their own: the allocator of a fork keeps what each thread has freed.
    """
    algos = "ddp,gradient_allreduce,low_precision_decentralized"
    found = rows(tmp_path, "memory", "--tasks", "resnet50", "--algos", algos, "task.batch=4", cold=True)
    by_name = {row["algorithm"]: row for row in found}
    weights = by_name["low_precision_decentralized"]["state_mb"] / 3
    assert weights == pytest.approx(102.2, rel=0.01)  # ResNet-50: 25.6 million parameters
    assert by_name["ddp"]["within"] == "-" and by_name["gradient_allreduce"]["state_mb"] == 0
    more = by_name["low_precision_decentralized"]["peak_mb"] - by_name["gradient_allreduce"]["peak_mb"]
    assert more == pytest.approx(3 * weights, rel=0.25)


def test_optimizers_are_stepped_in_every_way_that_they_have(tmp_path: Path) -> None:
    """Scales with the same parameters are one model; an optimizer of a user's has a path."""
    names = "SGD,Rprop,algorithms.qadam_optimizer.QAdamOptimizer"
    asked = ("--tasks", "quadratic", "--scales", "tiny,cpu", "--rounds", "3", "--optimizers", names)
    found = rows(tmp_path, "optimizer", *asked)
    assert [row["model"] for row in found] == ["1,000 small tensors"] * 3 + ["quadratic tiny, cpu"] * 3
    assert [row["optimizer"] for row in found] == names.split(",") * 2
    for row in found:
        kernel = row["optimizer"] != "Rprop"
        assert row["seconds"].keys() == {"plain", "again", "ours", "foreach"} | ({"fused"} if kernel else set())
        assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in row["seconds"].values())
        assert row["fastest"]
    assert [row["tensors"] for row in found] == [1000] * 3 + [3] * 3


@pytest.mark.parametrize(
    ("part", "arguments", "message"),
    [
        ("time", ["--tasks", "nope"], "task=nope"),
        ("optimizer", ["--optimizers", "Nope"], "--optimizers Nope: no such optimizer; allowed: SGD, Adam"),
        ("optimizer", ["--optimizers", "Muon"], "optimizer=Muon: it is not element-wise: it orthogonalizes"),
        ("optimizer", ["--scales", "huge"], "task.scale=huge: expected one of paper, cpu, tiny"),
        ("time", ["mode=emulate"], "overhead: 2 measured ranks over gloo; leave out mode, cluster, network, transport"),
        ("time", ["--algos", "byteps"], "mode=measure: algo=byteps cannot be run in it; allowed: simulate"),
        ("time", ["task.batch=0"], "task.batch=0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line(part: str, arguments: list[str], message: str, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "bagua_bench.overhead", part, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]
