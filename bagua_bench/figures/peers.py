"""Other systems and this suite's algorithms, at their defaults, against DDP at its best, beside published ones.

Emulated are the records. Simulated and published are the numbers of the published figures of the same task, on their
own cluster (`bagua-bench figures paper`), where DDP has its published setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.analysis.comparison import ratio_interval
from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import paper, rates, settings, style
from bagua_bench.results import records
from bagua_bench.results.records import Record

AXES = (*settings.KEYS, "task", "network.name", "network.bandwidth", "network.latency", "compute.haste")
PUBLISHED = "published"
_FIGURES = {"bert_large_bandwidth": "bert_large", "bert_large_latency": "bert_large", "vgg16_128gpu": "vgg16"}
"""Published figures in which systems stand beside each other on 128 GPUs, and their tasks."""


def table(found: Sequence[Record]) -> pd.DataFrame:
    """One row per task, network and system: throughput, its ratio to DDP at its best, and whether it differs from that;
    and for the published numbers of these tasks, and as simulated (settings: published), their ratios to DDP's.

    DDP has a row with its defaults and one with the fastest of its options. `faster_than_ddp` and `slower_than_ddp`
    follow the suite's rule for claims, with the A/A noise of the network's cells. ValueError if the records differ in
    more than system, its settings, task and network.
    """
    records.comparable(found, AXES)
    cells = settings.grouped(sorted(found, key=_place), lambda cell: cell.task.name, _network, rates.algorithm)
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
    return pd.DataFrame([*rows, *_of_paper({str(row["task"]) for row in rows})])


def _of_paper(tasks: set[str]) -> list[dict[str, object]]:
    """A row per system and network of the published figures of some tasks: published, and as it is simulated."""
    simulated = records.latest(records.read([paper.FOLDER / "records.jsonl"]))
    data = paper.table(simulated)
    data = data[data["figure"].isin(_FIGURES) & data["published"].notna()]
    data = data.assign(task=data["figure"].map(_FIGURES)).drop_duplicates(["task", "label", "gbit_per_s", "added_ms"])
    rows: list[dict[str, object]] = []
    for (task, rate, latency), there in data[data["task"].isin(tasks)].groupby(["task", "gbit_per_s", "added_ms"]):
        for source, column in ((PUBLISHED, "published"), ("simulated", "predicted")):
            own = dict(zip(there["label"].map(style.option), there[column], strict=True))
            base = own[facts.baseline()]
            faster = there["metric"].iloc[0] != "epoch_seconds"  # is more better?
            place = {
                "task": task,
                "network": _named(rate * 1e9, latency / 1e3),
                "source": source,
                "settings": PUBLISHED,
            }
            rows += [
                {**place, "algorithm": algo, "ratio_to_ddp": v / base if faster else base / v}
                for algo, v in own.items()
            ]
    return rows


def _place(record: Record) -> tuple[float, float]:
    network = record["config"]["network"]
    return network["bandwidth"] or math.inf, network["latency"]


def _network(cell: Cell) -> str:
    return _named(cell.network.bandwidth, cell.network.latency)


def _named(bandwidth: float | None, latency: float) -> str:
    """'10 Gbit/s, 5 ms', in lines."""
    rate = "no limit" if bandwidth is None else units.amount(bandwidth, units.RATES)
    return rate.replace(" ", "\n") + (f",\n{units.duration(latency)}" if latency else "")


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One figure per task."""
    return {str(task): rows.reset_index(drop=True) for task, rows in data.groupby("task", sort=False)}


def panels(data: pd.DataFrame) -> Sequence[Callable[[pd.DataFrame, Axes], None]]:
    """A column per source, that of the records first."""
    sources = list(dict.fromkeys(data["source"]))
    return [partial(draw, source=source, last=source == sources[-1]) for source in sources]


def draw(data: pd.DataFrame, axes: Axes, source: str = "", last: bool = True) -> None:
    """A mark per system on each network, side by side, with the interval of its ratio; DDP's defaults among them.

    source: whose column it is; the first one if none is given.
    """
    shown, source = data[~_is_base(data)], source or str(data["source"].iloc[0])
    systems, own = list(dict.fromkeys(shown["algorithm"])), shown[shown["source"] == source]
    places = list(dict.fromkeys(own["network"]))
    for number, algo in enumerate(systems):
        rows = own[own["algorithm"] == algo]
        across = [places.index(place) + 0.7 * ((number + 0.5) / len(systems) - 0.5) for place in rows["network"]]
        ends = [rows["ratio_to_ddp"] - rows["ratio_low"], rows["ratio_high"] - rows["ratio_to_ddp"]]
        name = style.wrapped(algo, 28) + (", defaults" if algo == facts.baseline() else "")
        look = style.published(algo) if source == PUBLISHED else style.line(algo, [source])
        axes.errorbar(
            across, rows["ratio_to_ddp"], yerr=ends, label=name, **{**look, "linestyle": "none", "markersize": 6}
        )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(0.8 * data["ratio_to_ddp"].min(), 1.25 * data["ratio_to_ddp"].max())
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20, 50) if axes.get_ylim()[0] < tick < axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(places)), places)
    best = own["settings"].ne(PUBLISHED).any()
    axes.set_ylabel("throughput, relative to DDP" + (" at its best" if best else ""))
    where = {PUBLISHED: "published, 128 GPUs", "simulated": "simulated, 128 GPUs"}
    axes.set_title(where.get(source) or rates.origin(data[data["source"] == source]))
    if last:
        style.legend(axes)


def _is_base(data: pd.DataFrame) -> pd.Series[bool]:
    return (data["algorithm"] == facts.baseline()) & data["settings"].isin([settings.TUNED, PUBLISHED])
