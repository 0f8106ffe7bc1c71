"""Autotuning: the score of every setting tried, the best so far, and the best of a sweep over all settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import style
from bagua_bench.figures.paper import FOLDER
from bagua_bench.results.records import Record, cell_of, comparable

AXES = (
    "algo",
    "task",
    *(f"network.{key}" for key in ("name", "bandwidth", "latency")),
    *(f"run.{key}" for key in ("bucket_size", "channels", "autotune")),
    "compute.haste",
)
PUBLISHED = "published"
AFTERWARDS = "afterwards"
_METRICS = {"autotune_speed": "score", "autotune_best_speed": "best_so_far"}
_NEAR = 0.98
_STUDY = ["case", "series", "round"]
_GIB, _ELEMENT = 2**30, 4
_COLOURS, _MARKERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), "o^sD"  # Okabe and Ito 2008, as style's


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per setting: of a study in the order of its trials, of a sweep (runs without a study) one per run.

    `score` is GiB of the model per second of a step, `of_best` its share of the best mean score of the sweep. A study
    is followed by the steps that were taken with what it found, and how many `samples` it took to come within 2 % of
    the best (none if it did not). The released service's published curve comes last, whose scores are of forward and
    backward passes alone. ValueError if the records differ in more than algorithm, task, network, bucket size, channels
    and autotuning.
    """
    comparable(records, AXES)
    data = pd.DataFrame([row for record in records for row in _rows(record)])
    swept = data[data["series"] == "sweep"]
    best = swept.groupby(["case", "bucket_size_2p", "channels"])["score"].mean().groupby("case").max()
    data["of_best"] = data["score"] / data["case"].map(best)
    near = data[data["best_so_far"] >= _NEAR * data["case"].map(best)].groupby(_STUDY)["sample"].min()
    data["samples"] = near.reindex(pd.MultiIndex.from_frame(data[_STUDY])).to_numpy()
    return pd.concat([data, pd.DataFrame(list(_published()))], ignore_index=True)


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    cell, result = cell_of(record), record["result"]
    own = {"case": _case(cell), "source": record["source"], "round": record["round"]}
    if study := result.get("study"):
        best = -np.inf
        for number, (trial, end) in enumerate(zip(study["trials"], study["ends"], strict=True), 1):
            best = max(best, trial["score"])
            row = {"series": _start(cell), "step": end, "sample": number, **trial["values"], "score": trial["score"]}
            yield {**own, **row, "best_so_far": best}
    if (sending := result.get("sending")) and sending.get("bucket_size"):
        step = float(np.mean(result["step_seconds"]))
        size = {"bucket_size_2p": float(np.log2(sending["bucket_size"])), "channels": sending["channels"]}
        gibibytes = _ELEMENT * result["parameters"] * cell.shrink / _GIB
        when = {"series": f"{_start(cell)}, {AFTERWARDS}"} if study else {"series": "sweep"}
        yield {**own, **when, **size, "score": gibibytes / step}


def _case(cell: Cell) -> str:
    rate, latency = (cell.network.bandwidth or 0) / 1e9, cell.network.latency * 1e3
    return f"{cell.task.name}_{cell.algo.name}_{rate:g}gbit_{latency:g}ms"


def _start(cell: Cell) -> str:
    size, asked = cell.run.bucket_size, cell.run.autotune
    if asked is not None and asked.advised:
        return "from the simulator's advice"
    return "from the default" if size is None else f"from buckets of 2^{np.log2(max(size, 1)):.3g} bytes"


def _published() -> Iterator[dict[str, Any]]:
    data = pd.read_csv(FOLDER / "autotune_aishell2.csv").dropna(subset=["x"])
    data = data[data["metric"].isin(_METRICS)]
    for step, points in data.groupby("x"):
        found = {_METRICS[str(row["metric"])]: row["value"] for row in points.to_dict("records")}
        yield {"case": PUBLISHED, "source": "published", "round": 0, "series": PUBLISHED, "step": step, **found}


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One figure per model, algorithm and network, each with the published curve."""
    found = {str(case): rows for case, rows in data.groupby("case", sort=False)}
    published = found.pop(PUBLISHED)
    return {case: pd.concat([rows, published], ignore_index=True) for case, rows in found.items()}


def panels(data: pd.DataFrame) -> list[Callable[[pd.DataFrame, Axes], None]]:
    """The published curve, and beside it what was tuned here."""
    return [_draw_published, draw]


def _draw_published(data: pd.DataFrame, axes: Axes) -> None:
    rows = data[data["series"] == PUBLISHED]
    _studies(rows, axes, 0, PUBLISHED)
    axes.set_title("published, AISHELL-2\n(forward and backward passes alone)")
    _label(axes)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Scores against steps as dots, and the best so far as lines; the best of the sweep is dashed."""
    own = data[data["series"] != PUBLISHED]
    after = own["series"].str.endswith(AFTERWARDS)
    for number, (series, rows) in enumerate(own[~after & (own["series"] != "sweep")].groupby("series", sort=False)):
        reached = own[own["series"] == f"{series}, {AFTERWARDS}"]["of_best"].mean()
        found = "" if np.isnan(reached) else f":\n{reached:.2f} of the best afterwards,\n{_samples(rows)}"
        _studies(rows, axes, number, f"{series}{found}")
    sweep = own[own["series"] == "sweep"]
    if len(sweep):
        best = sweep.groupby(["bucket_size_2p", "channels"])["score"].mean().max()
        axes.axhline(best, color="black", linestyle="--", linewidth=1, label="best of a sweep")
    rounds = own["round"].nunique()
    axes.set_title(f"{', '.join(sorted(set(own['source'])))}, {rounds} round{'' if rounds == 1 else 's'}")
    _label(axes)
    style.legend(axes, labelspacing=1.0)


def _studies(rows: pd.DataFrame, axes: Axes, number: int, label: str) -> None:
    """All rounds of a series: dots, and lines of the best so far."""
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    for _, one in rows.groupby("round"):
        axes.plot(one["step"], one["score"], marker, color=colour, markersize=3, alpha=0.6)
        axes.step(one["step"], one["best_so_far"], where="post", color=colour, linewidth=1.2)
    axes.plot([], [], color=colour, marker=marker, label=label)


def _label(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("score, GiB/s")


def _samples(rows: pd.DataFrame) -> str:
    """After how many samples the studies of a series had come near the best."""
    found = rows.groupby("round")["samples"].first()
    if found.isna().all():
        return "never within 2 % of it"
    some = "" if found.notna().all() else f"\nin {found.notna().sum()} of {len(found)} rounds"
    mean = found.mean()
    return f"within 2 % after {mean:.3g} sample{'' if mean == 1 else 's'}{some}"
