"""The accounts of `bagua-bench overhead`, from numbers that are worked out by hand."""

from __future__ import annotations

import pytest

from bagua_bench.overhead import accounts


def test_a_step_is_the_slowest_ranks_and_ratios_are_taken_round_by_round() -> None:
    """Three rounds of DDP, DDP again and an algorithm; the machine is twice as slow in the second round."""
    first = [[1.0, 1.0, 1.1], [2.0, 2.1, 2.2], [1.0, 0.9, 1.0]]
    second = [[0.9, 1.1, 1.0], [1.0, 2.0, 2.3], [1.0, 1.0, 1.3]]
    (row,) = accounts.times("vgg16", ["ddp", "mine"], [first, second])
    assert (row["task"], row["algorithm"], row["rounds"]) == ("vgg16", "mine", 3)
    assert row["ratio"] == pytest.approx(1.15)  # of 1.1, 1.15 and 1.3
    assert row["same"] == pytest.approx(1.05)  # of 1.1, 1.05 and 1.0
    assert row["low"] == pytest.approx(1.1) and row["high"] == pytest.approx(1.3)
    assert row["ddp_ms"] == pytest.approx(1000.0)


@pytest.mark.parametrize(("peak", "within"), [(3_700, "yes"), (4_000, "no")])
def test_room_for_the_tensors_for_two_buckets_and_for_a_twentieth_more(peak: int, within: str) -> None:
    """Activations of 500 are seen in plain torch; the state takes 500."""
    plain = {"weights": 1000, "activations": 500}
    found = {"weights": 1000, "gradients": 1000, "optimizer": 0, "peak": peak + 500, "bucket": 600}
    row = accounts.memory("vgg16", "mine", found, plain, 500.0)
    assert row["activations_mb"] == pytest.approx(500e-6) and row["peak_mb"] == pytest.approx(peak * 1e-6)
    assert row["tensors_mb"] == pytest.approx(2500e-6)
    assert row["allowed_mb"] == pytest.approx(1.05 * 2500e-6 + 1200e-6)
    assert row["within"] == within
    assert accounts.memory("vgg16", "peer", {**found, "bucket": 0}, plain, 0.0)["within"] == "-"


def seconds_of_ways(fused: float) -> dict[str, list[float]]:
    """Four rounds; the machine is twice as slow in the second. The plain loop against itself is off by at most 5 %."""
    slow = [1.0, 2.0, 1.0, 1.0]
    factors = {
        "plain": [1.0] * 4,
        "again": [1.05, 1.0, 0.96, 1.0],
        "ours": [0.2, 0.21, 0.2, 0.22],
        "foreach": [0.5] * 4,
    }
    factors["fused"] = [fused] * 4
    return {way: [a * b for a, b in zip(slow, values, strict=True)] for way, values in factors.items()}


@pytest.mark.parametrize(
    ("fused", "fastest", "line"),
    [
        (0.1, "fused=True", "net: prefer torch's own kernel, fused=True, for Adam"),
        (0.6, "fuse()", "net: prefer fuse(), for Adam"),
        (0.205, "fuse() or fused=True", None),
    ],
)
def test_the_fastest_way_of_an_optimizer_is_named(fused: float, fastest: str, line: str | None) -> None:
    found = {
        "model": "net",
        "optimizer": "torch.optim.Adam",
        "tensors": 3,
        "size": 9,
        "seconds": seconds_of_ways(fused),
    }
    (row,) = rows = accounts.optimizers([found])
    assert row["plain_ms"] == pytest.approx(1000.0) and row["rounds"] == 4
    assert row["ratios"]["ours"][0] == pytest.approx(0.205)
    assert row["ratios"]["again"] == (pytest.approx(1.0), (pytest.approx(0.96), pytest.approx(1.05)))
    assert row["fastest"] == fastest
    assert accounts.advice(rows) == ([] if line is None else [line])


def test_a_way_that_an_optimizer_does_not_have_is_left_out() -> None:
    seconds = {way: taken for way, taken in seconds_of_ways(0.1).items() if way != "fused"}
    (row,) = accounts.optimizers([{"model": "net", "optimizer": "Rprop", "seconds": seconds}])
    assert row["fused"] == row["ours_to_fused"] == "-" and row["fastest"] == "fuse()"
