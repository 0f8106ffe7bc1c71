"""Other systems and this suite's algorithms, at their defaults, against DDP at its best, on every network.

Beside each network are the published ratios at the same bandwidth and latency, of other clusters, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.analysis.comparison import ratio_interval
from bagua_bench.calibrate import published
from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import paper, rates, settings, style
from bagua_bench.results.records import Record, cells_of, comparable

PUBLISHED = "published"
_PUBLISHED = "published, "
AXES = (*settings.KEYS, "task", "network.name", "network.bandwidth", "network.latency", "compute.haste")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per task, network and system: throughput, its ratio to DDP at its best, and whether it differs from that;
    and one per published number of such a network (settings: published), with its ratio to the published DDP.

    DDP has a row with its defaults and one with the fastest of its options. `faster_than_ddp` and `slower_than_ddp`
    follow the suite's rule for claims, with the A/A noise of the network's cells. ValueError if the records differ in
    more than system, its settings, task and network.
    """
    comparable(records, AXES)
    cells = settings.grouped(records, lambda cell: cell.task.name, _network, rates.algorithm)
    noises = rates.noises(cells, 2)
    rows = []
    for (task, network, algo, way), group in cells.items():
        own = (task, network, facts.baseline())
        ddp = cells.get((*own, settings.TUNED)) or cells.get((*own, settings.DEFAULTS), [])
        row = {"task": task, "network": network, "algorithm": algo, "settings": way}
        compared = rates.compared(group, ddp, facts.baseline(), noises[task, network])
        low, high = ratio_interval(rates.of(group), rates.of(ddp)) if ddp else (None, None)
        ends = {"ratio_low": low, "ratio_high": high}
        rows.append({**row, **rates.row(group, facts.baseline(), ddp), **ends, **compared})
    return pd.DataFrame([*rows, *_published(records)])


def _published(records: Sequence[Record]) -> list[dict[str, object]]:
    """The rows of published numbers: of the networks of the records, on more GPUs."""
    places = {(cell.task.name, cell.network.bandwidth, cell.network.latency): cell for cell in cells_of(records)}
    groups: dict[tuple[str, str], list[published.Point]] = {}
    for point in published.distinct(published.points(paper.FOLDER)):
        given = dict(text.split("=", 1) for text in point.overrides)
        cell = places.get((given["task"], point.bandwidth * 1e9, point.latency / 1e3))
        if cell is not None:
            groups.setdefault((cell.task.name, f"{_network(cell)},\n{_PUBLISHED}{point.gpus} GPUs"), []).append(point)
    rows = []
    for (task, network), points in groups.items():
        seconds = {style.option(point.label): point.step_seconds(1) for point in points}
        if (base := seconds.get(facts.baseline())) is None:
            continue
        place = {"task": task, "network": network, "settings": PUBLISHED, "source": PUBLISHED}
        rows += [{**place, "algorithm": algo, "ratio_to_ddp": base / own} for algo, own in seconds.items()]
    return rows


def _network(cell: Cell) -> str:
    """'10 Gbit/s, 5 ms'."""
    rate = "no limit" if cell.network.bandwidth is None else units.amount(cell.network.bandwidth, units.RATES)
    return rate + (f",\n{units.duration(cell.network.latency)} one way" if cell.network.latency else "")


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One figure per task; the published numbers of a network follow those of the records."""
    found = {}
    for task, rows in data.groupby("task", sort=False):
        order = rows["network"].map(lambda place: place.partition(f",\n{_PUBLISHED}")[0])
        order = order.map({place: number for number, place in enumerate(dict.fromkeys(order))})
        found[str(task)] = rows.iloc[order.argsort(kind="stable")].reset_index(drop=True)
    return found


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A mark per system on each network, side by side, with the interval of its ratio; DDP's defaults among them."""
    places, shown = list(dict.fromkeys(data["network"])), data[~_is_base(data)]
    systems = list(dict.fromkeys(shown["algorithm"]))
    for number, algo in enumerate(systems):
        name = style.wrapped(algo, 28) + (", defaults" if algo == facts.baseline() else "")
        for source, rows in shown[shown["algorithm"] == algo].groupby("source"):
            across = [places.index(place) + 0.7 * ((number + 0.5) / len(systems) - 0.5) for place in rows["network"]]
            if source == PUBLISHED:
                axes.plot(across, rows["ratio_to_ddp"], label=name, **{**style.published(algo), "markersize": 7})
            else:
                ends = [rows["ratio_to_ddp"] - rows["ratio_low"], rows["ratio_high"] - rows["ratio_to_ddp"]]
                look = {**style.line(algo, rows["source"]), "linestyle": "none", "markersize": 7}
                axes.errorbar(across, rows["ratio_to_ddp"], yerr=ends, label=name, **look)
            name = "_nolegend_"
    for place, name in enumerate(places):
        if _PUBLISHED in name:
            axes.axvspan(place - 0.45, place + 0.45, color="black", alpha=0.05, linewidth=0)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    ticks = [0.2, 0.5, 1, 2, 5, 10]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel("throughput, relative to DDP at its best")
    rates.title(axes, data)
    style.legend(axes)


def _is_base(data: pd.DataFrame) -> pd.Series[bool]:
    return (data["algorithm"] == facts.baseline()) & data["settings"].isin([settings.TUNED, PUBLISHED])
