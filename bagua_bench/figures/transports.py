"""What a transport changes: throughput of each algorithm over each transport, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "transport")
BASELINE = "gloo"
_HATCHES = ("", "//", "..", "xx")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and transport: rounds, throughput with interval, ratio to gloo, whether it is faster.

    ValueError if the records differ in more than these two.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, rates.algorithm, _name)
    noise = stats.noise([rates.of(group) for group in cells.values()])
    rows = []
    for (algo, transport), group in cells.items():
        base = cells.get((algo, BASELINE), [])
        faster = stats.is_faster(rates.of(group), rates.of(base), noise) if base else None
        compared = rates.row(group, BASELINE, base)
        rows.append(
            {"algorithm": algo, "transport": transport, **compared, "faster_than_gloo": faster, "aa_noise": noise}
        )
    return pd.DataFrame(rows).sort_values(["algorithm", "transport"], ignore_index=True)


def _name(cell: Cell) -> str:
    return " ".join(filter(None, (cell.transport.backend, cell.transport.wire)))


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per algorithm, with the ratio to gloo above each."""
    algos, transports = sorted(set(data["algorithm"])), sorted(set(data["transport"]), key=lambda t: t != BASELINE)
    width = 0.8 / len(transports)
    for row in data.itertuples():
        number = transports.index(row.transport)
        position = algos.index(row.algorithm) + width * (number - (len(transports) - 1) / 2)
        label = row.transport if row.algorithm == algos[0] else None
        hatch = _HATCHES[number % len(_HATCHES)]
        rates.draw(axes, position, row, width, row.ratio_to_gloo, hatch=hatch, label=label)
    axes.set_xticks(range(len(algos)), [style.wrapped(algo) for algo in algos])
    axes.set_ylabel("samples per second")
    axes.margins(y=0.12)
    rates.title(axes, data)
    style.legend(axes)
