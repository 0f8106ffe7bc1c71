"""The few statistics of the suite, on SciPy; no torch import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_RESAMPLES = 2000


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean; with fewer than three values, both ends are the mean itself."""
    return _interval(values, np.mean)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The same of the median."""
    return _interval(values, np.median)


def _interval(values: Sequence[float], of: Callable[..., Any]) -> tuple[float, float]:
    if len(values) < 3 or len(set(values)) == 1:
        return float(of(values)), float(of(values))
    from scipy.stats import bootstrap  # takes most of a second to import

    data = (np.asarray(values),)
    ends = bootstrap(data, of, n_resamples=_RESAMPLES, method="percentile", rng=np.random.default_rng(0))
    return float(ends.confidence_interval.low), float(ends.confidence_interval.high)


def throughput(samples: float, seconds: Sequence[float]) -> float:
    """Samples per second of steps of `samples` samples each: all samples over all time, never a mean of rates."""
    return samples * len(seconds) / sum(seconds)


def throughput_interval(samples: float, seconds: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the throughput from the scatter of the steps of one run."""
    low, high = mean_interval(seconds)
    return samples / high, samples / low


def noise(rounds: Sequence[Sequence[float]]) -> float:
    """A/A noise: how far the ratio of a cell to itself strays from 1 (97.5 % quantile), worst over the cells.

    `rounds` holds the throughputs of the rounds of each cell. Both sides of the ratio are means over as many rounds
    as the cell has, drawn with replacement from its own.
    """
    rng, worst = np.random.default_rng(0), 0.0
    for values in rounds:
        data = np.asarray(values)
        means = [rng.choice(data, (_RESAMPLES, len(data))).mean(1) for _ in range(2)]
        worst = max(worst, float(np.quantile(np.abs(means[0] / means[1] - 1), 0.975)))
    return worst


def is_faster(a: Sequence[float], b: Sequence[float], aa_noise: float) -> bool:
    """Whether throughputs a beat b: Mann-Whitney at 5 %, and a ratio of means above the A/A noise."""
    from scipy.stats import mannwhitneyu

    ratio = float(np.mean(a) / np.mean(b))
    return ratio > 1 + aa_noise and bool(mannwhitneyu(a, b, alternative="greater").pvalue < 0.05)
