"""The figures of sweeps and ablations are pure functions of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib import pyplot

from bagua_bench.figures import ablation, sweep
from bagua_bench.results import records
from tests.catalogue import resolved
from tests.integration.cli import python
from tests.unit.test_records import RESULT, new

matplotlib.use("Agg")


def record(rate: float, *overrides: str, round_: int = 0) -> dict[str, Any]:
    made = json.loads(json.dumps(records.complete(new(round_), RESULT)))
    made["config"] = resolved("mode=emulate", "task=vgg16", *overrides).to_json()
    made["source"] = "emulated"
    made["result"]["throughput"] = rate
    return made


def test_a_bandwidth_sweep_has_a_row_per_algorithm_and_point() -> None:
    rates = {("ddp", "1gbit"): 10, ("ddp", "10gbit"): 40, ("bytegrad", "1gbit"): 35, ("bytegrad", "10gbit"): 60}
    found = [
        record(rate + k, f"algo={algo}", f"network.bandwidth={speed}", "compute.shrink=100", round_=k)
        for (algo, speed), rate in rates.items()
        for k in range(2)
    ]
    data = sweep.table(found)
    assert list(data["algorithm"]) == ["bytegrad", "bytegrad", "ddp", "ddp"]
    assert list(data["bandwidth, Gbit/s"]) == [1, 10, 1, 10]
    assert list(data["rounds"]) == [2] * 4 and set(data["scale_model"]) == {100}
    assert data["ratio_to_ddp"][0] == pytest.approx(35.5 / 10.5)
    samples = RESULT.samples_per_step
    assert data["step_seconds"][2] == pytest.approx((samples / 10 + samples / 11) / 2)
    _, axes = pyplot.subplots()
    sweep.draw(data, axes)
    assert len(axes.get_legend_handles_labels()[0]) == 2
    [own] = axes.child_axes
    assert "1 : 100" in own.get_xlabel()


def test_defaults_are_compared_with_defaults_and_tuned_with_tuned() -> None:
    speeds = {
        ("algo=ddp", "1gbit"): 10,
        ("algo=ddp algo.bucket_cap_mb=5", "1gbit"): 8,
        ("algo=ddp algo.bucket_cap_mb=100", "1gbit"): 12,
        ("algo=bytegrad", "1gbit"): 20,
        ("algo=bytegrad run.autotune=true", "1gbit"): 36,
        ("algo=decentralized", "1gbit"): 30,
        ("algo=ddp", "10gbit"): 40,
        ("algo=ddp algo.bucket_cap_mb=5", "10gbit"): 30,
        ("algo=bytegrad", "10gbit"): 60,
    }
    found = [
        record(rate + k / 100, *system.split(), f"network.bandwidth={speed}", round_=k)
        for (system, speed), rate in speeds.items()
        for k in range(5)
    ]
    data = sweep.table(found).set_index(["bandwidth, Gbit/s", "algorithm", "settings"])
    ratios = data["ratio_to_ddp"]
    assert ratios[1, "ddp", "tuned"] == 1 and data["samples_per_second"][1, "ddp", "tuned"] == pytest.approx(12.02)
    assert ratios[1, "bytegrad", "defaults"] == pytest.approx(2, rel=0.01)
    assert ratios[1, "bytegrad", "tuned"] == pytest.approx(3, rel=0.01)
    assert ratios[1, "decentralized", "defaults"] == pytest.approx(3, rel=0.01)
    assert (10, "decentralized", "defaults") not in ratios and (10, "bytegrad", "tuned") not in ratios
    assert data["samples_per_second"][10, "ddp", "tuned"] == pytest.approx(40.02), "its own may be the best"
    assert data["faster_than_ddp"][1, "bytegrad", "tuned"] and not data["faster_than_ddp"][1, "ddp", "tuned"]
    assert data["aa_noise"].groupby(level=0).nunique().eq(1).all(), "one per point"
    _, axes = pyplot.subplots()
    sweep.draw(sweep.table(found), axes)
    named = {"PyTorch DDP", "ByteGrad", "Decentralized SGD", "tuned"}
    assert set(axes.get_legend_handles_labels()[1]) == named
    _, axes = pyplot.subplots()
    assert sweep.panels(sweep.table(found)) == [sweep.draw_ratios, sweep.draw]
    sweep.draw_ratios(sweep.table(found), axes)
    highest = max(max(line.get_ydata()) for line in axes.lines)
    assert highest == pytest.approx(3, rel=0.01)


def test_records_of_one_point_are_refused_in_one_line(tmp_path: Path) -> None:
    for algo in ("ddp", "bytegrad"):
        records.append(tmp_path / "tradeoff_bandwidth" / "records.jsonl", record(10, f"algo={algo}"))
    done = python(tmp_path, "-m", "bagua_bench.figures", "tradeoff_bandwidth", "--results", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "of one point only" in done.stderr
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("points", "label"),
    [
        (["network.latency=0ms", "network.latency=5ms"], "latency"),
        (["+cluster.slow_ranks.0=1", "+cluster.slow_ranks.0=4"], "relative to the others"),
        (["cluster.servers=2", "cluster.servers=4"], "ranks"),
    ],
)
def test_what_a_sweep_runs_along_is_found(points: list[str], label: str) -> None:
    data = sweep.table([record(10, "algo=ddp", "network.bandwidth=1gbit", point) for point in points])
    assert any(label in column for column in data.columns)
    _, axes = pyplot.subplots()
    sweep.draw(data, axes)
    assert label in axes.get_xlabel()


def test_records_of_two_sweeps_are_not_drawn_together() -> None:
    with pytest.raises(ValueError, match="does not vary"):
        sweep.table([record(10, "network=1gbit"), record(10, "network=10gbit", "task.batch=3")])
    with pytest.raises(ValueError, match="one point"):
        sweep.table([record(10, "network=1gbit")])


def test_ablation_compares_with_everything_on() -> None:
    on = ["algo=bytegrad", "cluster=2x2", "algo.hierarchical=true"]
    found = [
        record(100, *on),
        record(50, *on, "run.overlap=false"),
        record(20, *on, "run.bucket_size=0B"),
        record(80, "algo=bytegrad", "cluster=2x2", "algo.hierarchical=false"),
    ]
    data = ablation.table(found).set_index("variant")
    ratios = {"all": 1.0, "without O": 0.5, "without F": 0.2, "without H": 0.8}
    assert dict(data["ratio_to_all"]) == pytest.approx(ratios)
    _, axes = pyplot.subplots()
    ablation.draw(data.reset_index(), axes)
    assert [bar.get_height() for bar in axes.patches] == [100, 20, 80, 50]
