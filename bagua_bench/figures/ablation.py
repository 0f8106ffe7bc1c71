"""What overlap (O), fused buckets (F) and hierarchical communication (H) each contribute to throughput."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "run.overlap", "run.bucket_size")
FULL = "all"


def variant(cell: Cell) -> str:
    """Name of a cell's variant: which of the three are off."""
    off = ["O"] * (not cell.run.overlap) + ["F"] * (cell.run.bucket_size == 0)
    off += ["H"] * (not facts.algorithm(cell.algo).by_server)
    return f"without {', '.join(off)}" if off else FULL


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and variant: rounds, throughput with interval, ratio to the variant with all three.

    ValueError if the records differ in more than the algorithm and these three.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, rates.algorithm, variant)
    rows = [
        {"algorithm": algo, "variant": name, **rates.row(group, FULL, cells.get((algo, FULL), []))}
        for (algo, name), group in cells.items()
    ]
    return pd.DataFrame(rows).sort_values(["algorithm", "variant"], ignore_index=True)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per variant."""
    variants = sorted(set(data["variant"]))
    algos = sorted(set(data["algorithm"]))
    width = 0.8 / len(algos)
    for row in data.itertuples():
        position = variants.index(row.variant) + width * (algos.index(row.algorithm) - (len(algos) - 1) / 2)
        label = row.algorithm if row.variant == variants[0] else None
        rates.draw(axes, position, row, width, label=label)
    axes.set_xticks(range(len(variants)), variants)
    axes.set_ylabel("samples per second")
    axes.legend(fontsize=7, title=", ".join(sorted(set(data["source"]))), title_fontsize=7)
