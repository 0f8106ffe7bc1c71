"""Statistics."""

from __future__ import annotations

import numpy as np
import pytest

from bagua_bench.results import stats


def test_throughput_is_samples_over_time() -> None:
    assert stats.throughput(10, [1, 3]) == 5  # the mean of the rates would be 6.7


def test_interval_covers_the_mean() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        low, high = stats.mean_interval(list(rng.normal(3, 1, 30)))
        hits += low <= 3 <= high
    assert hits >= 85
    assert stats.mean_interval([2.0]) == (2.0, 2.0)
    assert stats.mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_noise() -> None:
    assert stats.noise([[5.0] * 6]) == 0
    scattered = list(np.random.default_rng(0).normal(100, 5, 10))
    assert 0.02 < stats.noise([scattered]) < 0.08  # sqrt(2 / 10) x 5 % x 1.96 is 4.4 %
    assert stats.noise([[5.0] * 6, scattered]) == pytest.approx(stats.noise([scattered]), rel=0.2)


def test_faster_needs_significance_and_an_effect_above_the_noise() -> None:
    a, b = [110.0, 111, 112, 113, 114], [100.0, 101, 102, 103, 104]
    assert stats.is_faster(a, b, 0.02)
    assert not stats.is_faster(a, b, 0.2), "effect below the noise"
    assert not stats.is_faster(b, a, 0.02)
    assert not stats.is_faster([90.0, 150.0], [100.0, 101.0], 0.02), "too few rounds"
