"""Does an algorithm ever lose to itself with one channel? The ratio of throughputs, on every network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates, style
from bagua_bench.results.records import Record, comparable

AXES = (
    *("algo", "task", "network.name", "network.bandwidth", "network.latency"),
    *("run.channels", "run.steps", "run.untimed", "compute.haste"),
)


def _place(cell: Cell) -> str:
    return f"{cell.task.name}\n{(cell.network.bandwidth or 0) / 1e9:g} Gbit/s\n{cell.network.latency * 1e3:g} ms"


def _channels(cell: Cell) -> str:
    return str(cell.run.channels or "default")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per place (task, network) and algorithm: throughput with the default channels, its ratio to one.

    `slower_than_one_channel` follows the suite's rule for claims, with the A/A noise of the place's cells. ValueError
    if the records differ in more than that, or if one of the two is missing.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, _place, rates.algorithm, _channels)
    noises = rates.noises(cells, 1)
    rows = []
    for place, algo in dict.fromkeys((place, algo) for place, algo, _ in cells):
        pair = [cells.get((place, algo, channels)) for channels in ("default", "1")]
        if pair[0] is None or pair[1] is None:
            raise ValueError(f"{algo} is compared with itself: run.channels=null and 1 on each network")
        rows.append(
            {
                "place": place,
                "algorithm": algo,
                **rates.row(pair[0], "one_channel", pair[1]),
                **rates.compared(pair[0], pair[1], "one_channel", noises[(place,)]),
            }
        )
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A row of dots per algorithm: the ratio on each network."""
    places = list(dict.fromkeys(data["place"]))
    for algo, rows in data.groupby("algorithm", sort=False):
        look = {**style.line(str(algo), rows["source"]), "linestyle": "none"}
        look.pop("capsize", None)
        across = [places.index(place) for place in rows["place"]]
        axes.plot(across, rows["ratio_to_one_channel"], label=style.name(str(algo)), **look)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(np.arange(len(places)), places, fontsize=7)
    axes.set_ylabel("throughput, relative to one channel")
    rates.title(axes, data)
    style.legend(axes)
