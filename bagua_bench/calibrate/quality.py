"""How good predictions are: errors per figure and algorithm, rankings, and errors of points left out of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bagua_bench.calibrate.fit import Case, Fit, fit
from bagua_bench.calibrate.parameters import Parameter

_APART = 0.05
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


def held_out(
    cases: Sequence[Case], groups: Sequence[object], parameters: Sequence[Parameter], best: Fit
) -> NDArray[np.float64]:
    """The error of every point in a fit without its group."""
    errors = np.zeros(len(cases))
    for group in dict.fromkeys(groups):
        inside = [c for c, g in zip(cases, groups, strict=True) if g != group]
        outside = [i for i, g in enumerate(groups) if g == group]
        found = fit(inside, parameters, best.base, best.values, _EVALUATIONS)
        errors[outside] = found.errors([cases[i] for i in outside])
    return errors


def folds(count: int, k: int, seed: int = 0) -> list[int]:
    """A random fold, 0 ... k - 1, for each of `count` points."""
    order = np.random.default_rng(seed).permutation(count)
    return [int(position) % k for position in np.argsort(order)]


def parameter_table(found: Fit) -> pd.DataFrame:
    """Value, 95 % interval, range and reason of every parameter."""
    rows = [
        {
            "parameter": p.key,
            "value": value,
            "+-": half,
            "low": p.low,
            "high": p.high,
            "at its end": min(value - p.low, p.high - value) < 5e-3 * (p.high - p.low),
            "range because": p.why,
        }
        for p, value, half in zip(found.parameters, found.values, found.half_widths, strict=True)
    ]
    return pd.DataFrame(rows)
