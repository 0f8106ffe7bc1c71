"""The engine's defaults against DDP's on every network: the ratio of throughputs, and whether one loses."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates, style
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "task", "network.name", "network.bandwidth", "network.latency", "run.steps", "compute.haste")
_STYLES = ("-", "--", "-.", ":")


def _rate(cell: Cell) -> str:
    return f"{(cell.network.bandwidth or 0) / 1e9:g}"


def _latency(cell: Cell) -> str:
    return f"{cell.network.latency * 1e3:g}"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per task, network and algorithm: throughput, its ratio to DDP, and whether it differs from DDP's.

    `faster_than_ddp` and `slower_than_ddp` follow the suite's rule for claims, with the A/A noise of the network's
    cells. ValueError if the records differ in more than algorithm, task and network.
    """
    comparable(records, AXES)
    cells = rates.grouped(records, lambda cell: cell.task.name, _rate, _latency, rates.algorithm)
    noises = rates.noises(cells, 3)
    rows = []
    for (task, rate, latency, algo), group in cells.items():
        ddp = cells.get((task, rate, latency, facts.baseline()), [])
        rows.append(
            {
                "task": task,
                "gbit_per_s": float(rate),
                "latency_ms": float(latency),
                "algorithm": algo,
                **rates.row(group, facts.baseline(), ddp),
                **rates.compared(group, ddp, facts.baseline(), noises[task, rate, latency]),
            }
        )
    return pd.DataFrame(rows).sort_values(["task", "gbit_per_s", "latency_ms"], kind="stable", ignore_index=True)


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One figure per task."""
    return {str(task): rows.reset_index(drop=True) for task, rows in data.groupby("task", sort=False)}


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A line per algorithm and bandwidth: ratio to DDP against latency."""
    known = sorted(set(data["gbit_per_s"]))
    for (algo, rate), rows in data.groupby(["algorithm", "gbit_per_s"], sort=False):
        if algo != facts.baseline():
            dashes = _STYLES[known.index(rate) % len(_STYLES)]
            look = {**style.line(str(algo), rows["source"]), "linestyle": dashes}
            look.pop("capsize")
            label = f"{style.name(str(algo))}, {rate:g} Gbit/s"
            axes.plot(rows["latency_ms"], rows["ratio_to_ddp"], label=label, **look)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("latency one way, ms")
    axes.set_ylabel("throughput, relative to DDP's")
    rates.title(axes, data)
    style.legend(axes)
