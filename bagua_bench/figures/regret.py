"""What following the advice costs: the algorithm that `advise` puts first against the fastest one that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.advise import ranking
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates
from bagua_bench.results.records import Record, cell_of, comparable

AXES = (
    *("algo", "task", "network.name", "network.bandwidth", "network.latency", "cluster.servers", "cluster.slow_ranks"),
    *("run.steps", "run.untimed", "compute.haste"),
)
_SAME = "learning what DDP learns"
_ALL = "all algorithms"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per place (task, servers, network, straggler) and question: what is fastest among algorithms whose update
    is DDP's, and among all?

    `advised` is what the simulator finds fastest, of the algorithms that were measured, with the cluster's physics in
    the records; `regret` is its measured time of a step over that of the `fastest`; `first` whether that is within
    the A/A noise of the place's cells. ValueError if the records differ in more than that.
    """
    comparable(records, AXES)
    places = rates.grouped(records, _place)
    noises = rates.noises(rates.grouped(records, _place, rates.algorithm), 1)
    rows = [row for (place,), group in places.items() for row in _rows(place, group, noises[(place,)])]
    return pd.DataFrame(rows).sort_values(["question", "place"], kind="stable", ignore_index=True)


def _place(cell: Cell) -> str:
    """'vgg16, 4 servers, 10 Gbit/s, 2 ms' and, with a straggler, 'x3'."""
    slow = "".join(f", x{factor:g}" for factor in cell.cluster.slow_ranks.values())
    rate, latency = (cell.network.bandwidth or 0) / 1e9, cell.network.latency * 1e3
    return f"{cell.task.name}, {cell.cluster.servers} servers, {rate:g} Gbit/s, {latency:g} ms{slow}"


def _rows(place: str, records: Sequence[Record], noise: float) -> list[dict[str, Any]]:
    by_name = {name: group for (name,), group in rates.grouped(records, rates.algorithm).items()}
    cells = {name: cell_of(group[0]) for name, group in by_name.items()}
    advised = _advised(list(cells.values()))
    seconds = {
        name: float(np.mean([r["result"]["samples_per_step"] / r["result"]["throughput"] for r in group]))
        for name, group in by_name.items()
    }
    same = [name for name in cells if facts.algorithm(cells[name].algo).same_update]
    rows = []
    for question, names in ((_SAME, same), (_ALL, list(cells))):
        first, fastest = min(names, key=advised.__getitem__), min(names, key=seconds.__getitem__)
        regret = seconds[first] / seconds[fastest]
        rows.append(
            {
                "question": question,
                "place": place,
                "advised": first,
                "fastest": fastest,
                "advised_seconds": seconds[first],
                "fastest_seconds": seconds[fastest],
                "predicted_seconds": advised[first],
                "regret": regret,
                "first": regret <= 1 + noise,
                "algorithms": len(names),
                "rounds": min(len(by_name[name]) for name in names),
                "source": records[0]["source"],
                "aa_noise": noise,
            }
        )
    return rows


def _advised(cells: Sequence[Cell]) -> dict[str, float]:
    """The simulated seconds of a step by algorithm."""
    found = ranking.advise([replace(cell, mode="simulate") for cell in cells])
    return {row.algorithm: row.step_seconds for row in found}


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """The regrets of each question in ascending order, with the share of places in which the first is the fastest."""
    for question, rows in data.groupby("question", sort=False):
        ordered = np.sort(rows["regret"].to_numpy(float))
        said = f"{question}: first in {rows['first'].sum()} of {len(rows)}, median {np.median(ordered):.2f}"
        axes.plot(np.arange(1, len(ordered) + 1), ordered, marker="o", label=f"{said}, worst {ordered[-1]:.2f}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("places, by regret")
    axes.set_ylabel("time of the advised / of the fastest")
    rates.title(axes, data)
    axes.legend(loc="upper left")
