"""How good predictions are: errors per figure and algorithm, rankings, and errors of points left out of the fit."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray

from bagua_bench.calibrate.fit import Case, Fit, fit
from bagua_bench.calibrate.parameters import Parameter
from bagua_bench.simulate.posterior import UNSEEN

_APART = 0.05
_ENOUGH = 20  # points beyond those of the fit that tell how much the model errs there
_EVALUATIONS = 12  # limit for fits that start from the fit to all points


def summary(errors: pd.Series) -> dict[str, float]:
    """Mean, median, 90th percentile and largest of |relative error|, per cent."""
    size = 100 * errors.abs()
    return {
        "points": len(size),
        "MAPE": size.mean(),
        "median": size.median(),
        "p90": size.quantile(0.9),
        "worst": size.max(),
    }


def by(data: pd.DataFrame, column: str) -> pd.DataFrame:
    """`summary` of the column `error` for every value of a column."""
    return pd.DataFrame({key: summary(group["error"]) for key, group in data.groupby(column)}).T


def ranking(data: pd.DataFrame) -> tuple[int, int]:
    """Pairs in the right order, and all pairs, of points of one `panel` whose `seconds` are more than 5 % apart."""
    right = total = 0
    for _, panel in data.groupby("panel"):
        for (_, a), (_, b) in combinations(panel.iterrows(), 2):
            if abs(a["seconds"] / b["seconds"] - 1) > _APART:
                total += 1
                right += (a["seconds"] < b["seconds"]) == (a["predicted"] < b["predicted"])
    return right, total


def without(
    cases: Sequence[Case], groups: Sequence[Hashable], parameters: Sequence[Parameter], best: Fit
) -> dict[Hashable, Fit]:
    """For every group, a fit to the cases of the others; on all cores."""
    names = list(dict.fromkeys(groups))
    inside = [[c for c, g in zip(cases, groups, strict=True) if g != name] for name in names]
    work = (delayed(fit)(known, parameters, best.base, best.values, _EVALUATIONS) for known in inside)
    fits: list[Fit] = Parallel(n_jobs=len(os.sched_getaffinity(0)))(work)
    return dict(zip(names, fits, strict=True))


def held_out(cases: Sequence[Case], groups: Sequence[Hashable], fits: Mapping[Hashable, Fit]) -> NDArray[np.float64]:
    """The error of every point in the fit without its group."""
    return np.array([fits[group].errors([c])[0] for c, group in zip(cases, groups, strict=True)])


def coverage(cases: Sequence[Case], groups: Sequence[Hashable], fits: Mapping[Hashable, Fit]) -> float:
    """The share of points within the interval of a fit without their group that is to hold nine of ten."""
    covered = 0
    for group, found in fits.items():
        known = [c for c, g in zip(cases, groups, strict=True) if g != group]
        covered += sum(inside(found, known, [c for c, g in zip(cases, groups, strict=True) if g == group]))
    return covered / len(cases)


def inside(found: Fit, known: Sequence[Case], asked: Sequence[Case], besides: float = UNSEEN) -> list[bool]:
    """Whether each case lies in the interval, of a fit to the cases `known`, that is to hold nine of ten.

    besides: the model's relative error under conditions that none of `known` has.
    """
    errors = _errors(found, known, asked, besides)
    return [size <= half for size, half in errors]


def unseen(found: Fit, known: Sequence[Case], asked: Sequence[Case]) -> float:
    """The relative error besides, with which intervals hold nine of ten cases under conditions that `known` lacks.

    What is assumed, where there are too few of them to say.
    """
    posterior = found.posterior([c.cell for c in known])
    beyond = [c for c in asked if posterior.beyond(c.cell)]
    if len(beyond) < _ENOUGH:
        return UNSEEN
    besides = [math.sqrt(max(0.0, size**2 - half**2)) for size, half in _errors(found, known, beyond, 0.0)]
    return math.expm1(float(np.quantile(besides, 0.9)))


def _errors(found: Fit, known: Sequence[Case], asked: Sequence[Case], besides: float) -> list[tuple[float, float]]:
    """The size of each case's error, on a logarithmic scale, and the half-width of its interval."""
    own, posterior = uncertainty(found, known), replace(found.posterior([c.cell for c in known]), unseen=besides)
    errors = []
    for c in asked:
        values = found.physics(c)
        away = posterior.spread(values, c.cell.transport.name, c.predict)
        errors.append((abs(math.log(c.predict(values) / c.seconds)), posterior.width(own, away, c.cell)))
    return errors


def uncertainty(found: Fit, cases: Sequence[Case]) -> float:
    """The model's own error: the relative error that nine of ten points stay within.

    It is that of the points in the fit, and more by what the fit gained from having so many parameters.
    """
    freedom = max(1, len(cases) - len(found.parameters))
    return float(np.quantile(np.abs(found.errors(cases)), 0.9)) * math.sqrt(len(cases) / freedom)


def folds(count: int, k: int, seed: int = 0) -> list[int]:
    """A random fold, 0 ... k - 1, for each of `count` points."""
    order = np.random.default_rng(seed).permutation(count)
    return [int(position) % k for position in np.argsort(order)]


def parameter_table(found: Fit) -> pd.DataFrame:
    """Value, 95 % interval, what share of the range's variance the points took away, range and its reason."""
    rows = [
        {
            "parameter": p.key,
            "value": value,
            "+-": half,
            "learned": learned,
            "low": p.low,
            "high": p.high,
            "at its end": min(value - p.low, p.high - value) < 5e-3 * (p.high - p.low),
            "range because": p.why,
        }
        for p, value, half, learned in zip(
            found.parameters, found.values, found.half_widths, found.learned, strict=True
        )
    ]
    return pd.DataFrame(rows)
