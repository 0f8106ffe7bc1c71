"""What losing a server and getting it back does to the loss, and how long each takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.elastic_settings import text_of
from bagua_bench.figures import rates, style
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "run.elastic")
WINDOW = 10
"""Steps over which a loss is averaged."""
_NONE = "none"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm, outages and window of steps: the loss, as mean and extremes over rounds.

    A row in whose window runs were interrupted also says by what, with the seconds without a step, of the steps that
    were repeated the most, and how many ranks went on. ValueError if records differ in more than algorithm and
    outages, or are of runs that are not elastic.
    """
    comparable(records, AXES)
    if any("elastic" not in record["result"] for record in records):
        raise ValueError("a record is of a run without run.elastic=true")
    rows = []
    for (algo, outages), group in rates.grouped(records, rates.algorithm, _outages).items():
        losses = np.array([record["result"]["losses"] for record in group])
        windows = losses[:, : losses.shape[1] // WINDOW * WINDOW].reshape(len(group), -1, WINDOW).mean(2)
        rows += [
            {
                "algorithm": algo,
                "source": group[0]["source"],
                "outages": outages,
                "rounds": len(group),
                "step": (number + 1) * WINDOW,
                "loss": float(windows[:, number].mean()),
                "loss_least": float(windows[:, number].min()),
                "loss_most": float(windows[:, number].max()),
                **_interruptions(group, number * WINDOW),
            }
            for number in range(windows.shape[1])
        ]
    return pd.DataFrame(rows)


def _outages(cell: Cell) -> str:
    outages = cell.run.elastic.outages if cell.run.elastic else ()
    text = ", ".join(map(text_of, outages)) or _NONE
    return f"{text}, no restart" if cell.run.elastic and cell.run.elastic.regroup else text


def _interruptions(group: Sequence[Record], after: int) -> dict[str, object]:
    """Of the runs of a cell, in the window that begins after so many steps."""
    found = [
        (event, life)
        for record in group
        for event, life in zip(
            record["result"]["elastic"]["interruptions"], record["result"]["elastic"]["lives"][1:], strict=True
        )
        if after <= event["step"] < after + WINDOW
    ]
    seconds = [event["seconds"] for event, _ in found]
    return {
        "event": "; ".join(sorted({event["event"] for event, _ in found})),
        "seconds": float(np.mean(seconds)) if found else None,
        "seconds_least": min(seconds, default=None),
        "seconds_most": max(seconds, default=None),
        "repeated_most": max((event["repeated"] for event, _ in found), default=None),
        "ranks": min((life["ranks"] for _, life in found), default=None),
    }


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A line per algorithm, dotted without outages; marks where runs were interrupted, with seconds without a step."""
    for (algo, outages), rows in data.groupby(["algorithm", "outages"], sort=False):
        colour, whole = style.colour(str(algo)), outages == _NONE
        label = f"{style.name(str(algo))}{'' if whole else f', {outages}'}"
        axes.plot(rows["step"], rows["loss"], label=label, linewidth=1.2, color=colour, linestyle=":" if whole else "-")
        for row in rows[rows["event"] != ""].itertuples():
            axes.plot([row.step], [row.loss], marker="v", color=colour, markersize=6)
            axes.annotate(f"{row.seconds:.0f} s", (row.step, row.loss), (3, 4), "data", "offset points", fontsize=6)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {WINDOW} steps")
    axes.set_title(f"{', '.join(sorted(set(data['source'])))}; server@lost-back, seconds without a step")
    style.legend(axes)
