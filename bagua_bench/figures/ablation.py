"""What overlap (O), fused buckets (F) and hierarchical communication (H) each contribute to throughput."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates, settings, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, comparable

AXES = (*settings.KEYS, "run.overlap", "run.bucket_size")
FULL = "all"


def variant(cell: Cell) -> str:
    """Name of a cell's variant: which of the three are off."""
    off = ["O"] * (not cell.run.overlap) + ["F"] * (cell.run.bucket_size == 0)
    off += ["H"] * (not facts.algorithm(cell.algo).by_server)
    return f"without {', '.join(off)}" if off else FULL


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm, variant and settings: throughput with interval, ratio to the defaults with all three.

    `faster_than_all` and `slower_than_all` follow the suite's rule for claims.

    ValueError if the records differ in more than the algorithm and these three.
    """
    comparable(records, AXES)
    cells = settings.grouped(records, rates.algorithm, variant)
    noise = stats.noise([rates.of(group) for group in cells.values()])
    rows = []
    for (algo, name, way), group in cells.items():
        base = cells.get((algo, FULL, settings.DEFAULTS), [])
        own = {"algorithm": algo, "variant": name, "settings": way}
        rows.append({**own, **rates.row(group, FULL, base), **rates.compared(group, base, FULL, noise)})
    return pd.DataFrame(rows).sort_values(["algorithm", "variant", "settings"], ignore_index=True)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per variant; hatched where the engine was tuned."""
    variants = sorted(set(data["variant"]))
    kinds = sorted(set(zip(data["algorithm"], data["settings"], strict=True)))
    width = 0.8 / len(kinds)
    for row in data.itertuples():
        kind = (row.algorithm, row.settings)
        position = variants.index(row.variant) + width * (kinds.index(kind) - (len(kinds) - 1) / 2)
        label = f"{style.name(row.algorithm)}, {row.settings}" if row.variant == FULL else None
        rates.draw(axes, position, row, width, label=label, **settings.of_bar(row.settings))
    axes.set_xticks(range(len(variants)), variants)
    axes.set_ylabel("samples per second")
    rates.title(axes, data)
    style.legend(axes)
