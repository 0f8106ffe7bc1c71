"""The published benchmark page compared with the simulator: every figure, with a table of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, StrMethodFormatter

from bagua_bench.calibrate import published
from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import curves, style
from bagua_bench.results.provenance import HOME
from bagua_bench.results.records import Record, cell_of

_METRICS = {
    "epoch_seconds": "time of an epoch, s",
    "samples_per_second": "samples per second",
    "throughput": "samples per second",
    "step_seconds": "time of a step, s",
}
FOLDER = HOME / "results" / "paper"
"""Published numbers."""


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per published number, and per simulated cell without a published number.

    `published` and `predicted` are epoch seconds or samples per second, as in the figure; `error` is predicted /
    published - 1 for the time of a step. ValueError for records that are not simulated.
    """
    cells = {_key(cell_of(record)): record for record in records}
    if any(record["source"] != "simulated" for record in records):
        raise ValueError("the figures of the paper are drawn from simulated records only")
    rows, used = [], set()
    for point in published.points(FOLDER):
        key = ("bagua_paper", *_wanted(point.overrides))
        if key in cells:
            used.add(key)
            rows.append(_row(point, cells[key]))
    for label, overrides, seconds in published.end_to_end(FOLDER):
        key = ("bagua_paper_e2e", *_wanted(overrides))
        if key in cells:
            used.add(key)
            predicted = float(np.mean(cells[key]["result"]["step_seconds"]))
            rows.append(_plain("e2e_vgg16", label, 128, 100.0, 0.0, "step_seconds", seconds, predicted, seconds))
    for key, record in cells.items():
        if key[0] == "bagua_paper_e2e":
            rows.append(_scaling(record))
    return pd.DataFrame([*rows, *curves.table(FOLDER, _stretch(rows))])


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of every figure of the page."""
    return {str(name): rows.reset_index(drop=True) for name, rows in data.groupby("figure", sort=False)}


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """One figure: bars if the published one has bars, otherwise lines; published filled, simulated hollow."""
    figure = data["figure"].iloc[0]
    across = {"bert_large_bandwidth": "gbit_per_s", "bert_large_latency": "added_ms", "scalability_vgg16": "gpus"}
    if "level" in data and data["level"].notna().any():
        curves.draw(data, axes)
    elif figure in across:
        _lines(data, across[figure], axes)
    else:
        _bars(data, axes)
    known = data["error"].dropna().abs()
    both = f"published filled, simulated hollow; mean error {100 * known.mean():.1f} %"
    axes.set_title(both if len(known) else "simulated")


def _lines(data: pd.DataFrame, across: str, axes: Axes) -> None:
    for label, rows in data.groupby("label", sort=False):
        rows = rows.sort_values(across)
        if rows["published"].notna().any():
            axes.plot(rows[across], rows["published"], **style.published(str(label)))
        axes.plot(rows[across], rows["predicted"], label=style.name(str(label)), **style.simulated(str(label)))
    if across != "added_ms":
        axes.set_xscale("log")
    axes.set_yscale("log")
    labels = {"gbit_per_s": "bandwidth, Gbit/s", "added_ms": "added latency one way, ms", "gpus": "GPUs"}
    axes.set_xlabel(labels[across])
    axes.set_ylabel(_METRICS[data["metric"].iloc[0]])
    points = sorted(set(data[across]))
    axes.set_xticks(points, [f"{x:g}" for x in points])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    style.legend(axes)


def _bars(data: pd.DataFrame, axes: Axes) -> None:
    places = np.arange(len(data))
    for place, row in zip(places, data.to_dict("records"), strict=True):
        mark = style.colour(str(row["label"]))
        axes.bar(place - 0.2, row["published"], 0.4, color=mark, alpha=0.6)
        hatch = "///" if row.get("fitted") is False else None  # not in the calibration
        axes.bar(place + 0.2, row["predicted"], 0.4, facecolor="none", edgecolor=mark, linestyle="--", hatch=hatch)
    names = [style.name(str(row["label"])) for row in data.to_dict("records")]
    for key, form in (("gbit_per_s", "{:g} Gbit/s"), ("transport", "{}")):  # as far as the bars differ in them
        if data.groupby("label")[key].nunique().max() > 1 and data.duplicated("label").any():
            names = [f"{name}, {form.format(value)}" for name, value in zip(names, data[key], strict=True)]
    axes.set_xticks(places, names, rotation=40, fontsize=7, ha="right")
    axes.set_ylabel(_METRICS[data["metric"].iloc[0]])


def _stretch(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Predicted / published step of the runs behind the end-to-end curves: BERT-Large's come from its sweep."""
    found = {}
    for row in rows:
        if row["figure"] == "e2e_vgg16":
            found["e2e_vgg16", row["label"]] = 1 + row["error"]
        if row["figure"] == "bert_large_bandwidth" and row["gbit_per_s"] == 100:
            label = "ddp" if row["label"] == "pytorch_ddp" else row["label"]
            found["e2e_bert_large", label] = 1 + row["error"]
    return found


def _key(cell: Cell) -> tuple[object, ...]:
    network, cluster = cell.network, cell.cluster
    place = (cluster.servers, cluster.ranks_per_server)
    link = (network.bandwidth and network.bandwidth / 1e9, round(network.latency * 1e3, 6))
    return (cluster.name, cell.task.name, cell.algo.name, cell.transport.name, *place, *link)


def _wanted(overrides: Sequence[str]) -> tuple[object, ...]:
    given = dict(text.split("=", 1) for text in overrides)
    rate = float(given["network.bandwidth"].removesuffix("gbit"))
    latency = float(given.get("network.latency", "0ms").removesuffix("ms"))
    return (given["task"], given["algo"], given["transport"], int(given["cluster.servers"]), 8, rate, latency)


def _row(point: published.Point, record: Record) -> dict[str, Any]:
    result, batch = record["result"], record["config"]["task"]["batch"]
    step, known = float(np.mean(result["step_seconds"])), point.step_seconds(batch)
    predicted = point.value * (step / known if point.metric == "epoch_seconds" else known / step)
    place = (point.gpus, point.bandwidth, point.latency)
    row = _plain(point.figure, point.label, *place, point.metric, point.value, predicted, known, step)
    return {**row, "transport": cell_of(record).transport.name, "reading_error": point.error, "fitted": point.fitted}


def _scaling(record: Record) -> dict[str, Any]:
    rate = record["result"]["throughput"]
    label = record["config"]["algo"]["name"]
    return _plain("scalability_vgg16", label, record["ranks"], 100.0, 0.0, "samples_per_second", None, rate, None)


def _plain(
    figure: str,
    label: str,
    gpus: int,
    rate: float,
    latency: float,
    metric: str,
    known: float | None,
    predicted: float,
    known_step: float | None,
    step: float | None = None,
) -> dict[str, Any]:
    error = None if known_step is None else (predicted if step is None else step) / known_step - 1
    return {
        "figure": figure,
        "label": label,
        "gpus": gpus,
        "gbit_per_s": rate,
        "added_ms": latency,
        "metric": metric,
        "published": known,
        "predicted": predicted,
        "error": error,
    }
