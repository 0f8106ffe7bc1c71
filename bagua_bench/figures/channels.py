"""What several buckets under way at a time bring: throughput of each algorithm by number of channels, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.figures import rates, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "run.channels")
_HATCHES = ("", "//", "..", "xx")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and number of channels: throughput, its ratio to DDP, and whether it differs from others.

    `faster_than_ddp`, `slower_than_ddp` and `slower_than_one_channel` follow the suite's rule for claims. ValueError if
    the records differ in more than these two.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, rates.algorithm, lambda cell: str(cell.run.channels or 1))
    noise = stats.noise([rates.of(group) for group in cells.values()])
    ddp = cells.get((facts.baseline(), "1"), [])
    rows = []
    for (algo, channels), group in cells.items():
        own, one = rates.of(group), rates.of(cells.get((algo, "1"), []))
        rows.append(
            {
                "algorithm": algo,
                "channels": int(channels),
                **rates.row(group, facts.baseline(), ddp),
                "faster_than_ddp": stats.is_faster(own, rates.of(ddp), noise) if ddp else None,
                "slower_than_ddp": stats.is_faster(rates.of(ddp), own, noise) if ddp else None,
                "slower_than_one_channel": stats.is_faster(one, own, noise) if one else None,
                "aa_noise": noise,
            }
        )
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per algorithm, with the ratio to DDP above each."""
    algos, numbers = list(dict.fromkeys(data["algorithm"])), sorted(set(data["channels"]))
    width = 0.8 / len(numbers)
    labelled: set[int] = set()
    for row in data.itertuples():
        number = numbers.index(row.channels)
        of_it = sum(data["algorithm"] == row.algorithm)
        position = algos.index(row.algorithm) + (width * (number - (len(numbers) - 1) / 2) if of_it > 1 else 0)
        label = None if row.channels in labelled or of_it == 1 else f"{row.channels}"
        labelled |= {row.channels} if label else set()
        rates.draw(axes, position, row, width, row.ratio_to_ddp, hatch=_HATCHES[number % len(_HATCHES)], label=label)
    axes.set_xticks(range(len(algos)), [style.wrapped(algo) for algo in algos])
    axes.set_ylabel("samples per second")
    rates.title(axes, data)
    axes.margins(y=0.12)
    style.legend(axes, title="channels")
