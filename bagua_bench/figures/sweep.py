"""Step time of several algorithms against one quantity: bandwidth, latency, servers, or the slowness of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, StrMethodFormatter

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import rates, settings, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, bytes_sent, cell_of, cells_of, comparable


class Quantity(NamedTuple):
    """A quantity that a sweep may vary: its configuration keys, how to read it from a cell, label and scale."""

    keys: tuple[str, ...]
    value: Callable[[Cell], float]
    label: str
    scale: str


def _bandwidth(cell: Cell) -> float:
    limit = cell.network.bandwidth
    return float("inf") if limit is None else limit / 1e9


def _slowness(cell: Cell) -> float:
    return max([1.0, *cell.cluster.slow_ranks.values()])


_NETWORK = ("network.name", "network.bandwidth", "network.backend")
"""What a single server, which has no network, does not share with several."""

QUANTITIES = (
    Quantity(("network.bandwidth",), _bandwidth, "bandwidth, Gbit/s", "log"),
    Quantity(("network.latency",), lambda cell: cell.network.latency * 1e3, "latency one way, ms", "linear"),
    Quantity(("cluster.slow_ranks",), _slowness, "compute time of one rank, relative to the others", "linear"),
    Quantity(
        ("cluster.name", "cluster.servers", "cluster.ranks_per_server", *_NETWORK),
        lambda cell: cell.cluster.ranks,
        "ranks",
        "log",
    ),
)


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm, settings and point: seconds of a step with interval, epoch, throughput, ratio to DDP's.

    DDP's settings are of the same kind, if there are such. `faster_than_ddp` and `slower_than_ddp` follow the suite's
    rule for claims, with the A/A noise of the point's cells. ValueError if the records differ in more than the
    algorithm, its settings and one quantity.
    """
    quantity = quantity_of(records)
    cells = settings.grouped(records, lambda cell: repr(quantity.value(cell)), rates.algorithm)
    noises = rates.noises(cells, 1)
    rows = []
    for (x, algo, way), group in cells.items():
        values = rates.of(group)
        samples = group[0]["result"]["samples_per_step"]
        steps = [samples / rate for rate in values]
        low, high = stats.mean_interval(steps)
        base = cells.get((x, facts.baseline(), way)) or cells.get((x, facts.baseline(), settings.DEFAULTS), [])
        factor = cell_of(group[0]).shrink
        rows.append(
            {
                "algorithm": algo,
                "settings": way,
                quantity.label: float(x),
                "source": group[0]["source"],
                "scale_model": factor,
                "rounds": len(group),
                "step_seconds": float(np.mean(steps)),
                "low": low,
                "high": high,
                "epoch_seconds": group[0]["result"]["samples_per_epoch"] / float(np.mean(values)),
                "samples_per_second": float(np.mean(values)),
                "ratio_to_ddp": float(np.mean(values) / np.mean(rates.of(base))) if base else None,
                **rates.compared(group, base, facts.baseline(), noises[(x,)]),
                "megabytes_per_step_and_rank": float(np.mean([bytes_sent(r) for r in group])) / 1e6 * factor,
                "staleness_steps": rates.staleness(group),
                "flags": sum(len((r["network"]["measured"] or {}).get("flags", ())) for r in group),
            }
        )
    return pd.DataFrame(rows).sort_values(["algorithm", "settings", quantity.label], ignore_index=True)


def quantity_of(records: Sequence[Record]) -> Quantity:
    """The quantity that the records' sweep varies. ValueError if it is not exactly one."""
    failure: ValueError | None = None
    for quantity in QUANTITIES:
        try:
            comparable(records, (*settings.KEYS, "compute.haste", *quantity.keys))
        except ValueError as error:
            failure = failure or error
        else:
            if len({quantity.value(cell) for cell in cells_of(records)}) > 1:
                return quantity
    raise failure or ValueError("the records are of one point only: there is no sweep to draw")


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A line per algorithm of `table`, dotted where it is tuned.

    A scale model's bandwidth sweep has a second axis with its own rates.
    """
    quantity = next(q for q in QUANTITIES if q.label in data.columns)
    for (algo, way), rows in data.groupby(["algorithm", "settings"], sort=False):
        error = [rows["step_seconds"] - rows["low"], rows["high"] - rows["step_seconds"]]
        known = rates.label(style.name(str(algo)), list(rows["staleness_steps"]))
        name = known if way == settings.DEFAULTS else None
        look = {**style.line(str(algo), rows["source"]), **settings.of_line(way)}
        axes.errorbar(rows[quantity.label], rows["step_seconds"], yerr=error, label=name, **look)
    axes.set_xscale(quantity.scale)
    axes.set_yscale("log")
    axes.set_xlabel(quantity.label)
    axes.set_ylabel("time of a step, s")
    points = sorted(set(data[quantity.label]))
    axes.set_xticks(points, [f"{x:g}" for x in points])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 5 * low else range(1, 10)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    factor = data["scale_model"].iloc[0]
    if factor != 1 and quantity is QUANTITIES[0]:
        there, back = _rescaled(factor)
        own = axes.secondary_xaxis("top", functions=(there, back))
        own.set_xlabel(f"emulated, Mbit/s (a scale model of 1 : {factor:g})", fontsize=8)
        own.set_xticks([x * 1e3 / factor for x in points], [f"{x * 1e3 / factor:g}" for x in points])
        own.minorticks_off()
    if settings.TUNED in set(data["settings"]):
        axes.plot([], [], color="black", label="tuned", **settings.of_line(settings.TUNED))
    rates.title(axes, data)
    style.legend(axes)


def draw_ratios(data: pd.DataFrame, axes: Axes) -> None:
    """The same lines as speed-ups over DDP, whose settings are of the same kind if there are such."""
    quantity = next(q for q in QUANTITIES if q.label in data.columns)
    for (algo, way), rows in data.groupby(["algorithm", "settings"], sort=False):
        look = {**style.line(str(algo), rows["source"]), **settings.of_line(way)}
        look.pop("capsize")
        axes.plot(rows[quantity.label], rows["ratio_to_ddp"], **look)
    axes.set_xscale(quantity.scale)
    axes.set_xlabel(quantity.label)
    axes.set_ylabel("speed-up over DDP")
    points = sorted(set(data[quantity.label]))
    axes.set_xticks(points, [f"{x:g}" for x in points])
    axes.minorticks_off()


def panels(data: pd.DataFrame) -> Sequence[Callable[[pd.DataFrame, Axes], None]]:
    """The speed-ups, if DDP is there, beside the times."""
    return [draw_ratios, draw] if data["ratio_to_ddp"].notna().any() else [draw]


def _rescaled(factor: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """From Gbit/s to a scale model's Mbit/s, and back."""
    return (lambda x: x * 1e3 / factor), (lambda x: x * factor / 1e3)
