"""Throughput of several algorithms on one task: bars with 95 % intervals over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.figures import rates, settings, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, bytes_sent, comparable


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and settings: rounds, throughput, interval, ratio to DDP, faster or slower, A/A noise.

    DDP's settings are of the same kind, if there are such. ValueError if the records differ in more than the algorithm.
    """
    comparable(records, settings.KEYS)
    cells = settings.grouped(records, rates.algorithm)
    noise = stats.noise([rates.of(group) for group in cells.values()])
    rows = []
    for (algo, way), group in cells.items():
        base = cells.get((facts.baseline(), way)) or cells.get((facts.baseline(), settings.DEFAULTS), [])
        rows.append(
            {
                "algorithm": algo,
                "settings": way,
                **rates.row(group, facts.baseline(), base),
                **rates.compared(group, base, facts.baseline(), noise),
                "megabytes_per_step_and_rank": float(np.mean([bytes_sent(record) for record in group])) / 1e6,
            }
        )
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, with the ratio to DDP above each."""
    for position, row in enumerate(data.itertuples()):
        rates.draw(axes, position, row, ratio=row.ratio_to_ddp, **settings.of_bar(row.settings))
    names = [rates.label(_name(row), [row.staleness_steps]) for row in data.itertuples()]
    crowded = len(data) > 4
    axes.set_xticks(range(len(data)), names, rotation=35 * crowded, ha="right" if crowded else "center")
    axes.set_ylabel("samples per second")
    rates.title(axes, data)
    axes.margins(y=0.12)


def _name(row: Any) -> str:
    name = style.wrapped(row.algorithm)
    return name if row.settings == settings.DEFAULTS else f"{name},\n{row.settings}"
