"""Throughput of several algorithms on one task: bars with 95 % intervals over rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.figures import rates
from bagua_bench.results import stats
from bagua_bench.results.records import Record, comparable

AXES = ("algo",)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm: rounds, throughput, interval, ratio to DDP, whether it is faster or slower, A/A noise.

    ValueError if the records differ in more than the algorithm.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, rates.algorithm)
    noise = stats.noise([rates.of(group) for group in cells.values()])
    base = cells.get((facts.baseline(),), [])
    rows = []
    for (algo,), group in cells.items():
        values, reference = rates.of(group), rates.of(base)
        sent = [sum(rank.values()) for record in group for rank in record["result"]["bytes_per_step"]]
        rows.append(
            {
                "algorithm": algo,
                **rates.row(group, facts.baseline(), base),
                "faster_than_ddp": stats.is_faster(values, reference, noise) if base else None,
                "slower_than_ddp": stats.is_faster(reference, values, noise) if base else None,
                "aa_noise": noise,
                "megabytes_per_step_and_rank": float(np.mean(sent)) / 1e6,
            }
        )
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, with the ratio to DDP above each."""
    for position, row in enumerate(data.itertuples()):
        rates.draw(axes, position, row, ratio=row.ratio_to_ddp)
    names = [rates.label(row.algorithm, [row.staleness_steps]) for row in data.itertuples()]
    axes.set_xticks(range(len(data)), names, rotation=20)
    axes.set_ylabel("samples per second")
    rates.title(axes, data)
    axes.margins(y=0.12)
