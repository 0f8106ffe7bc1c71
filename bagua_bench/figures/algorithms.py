"""Throughput of the algorithms beside the bytes that a rank sends per step."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.figures import throughput

table = throughput.table


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of throughput (left axis), diamonds of bytes per step and rank (right axis)."""
    throughput.draw(data, axes)
    sent = axes.twinx()
    sent.plot(range(len(data)), data["megabytes_per_step_and_rank"], "D", color="black", mec="white", markersize=6)
    sent.set_ylabel("MB sent per step and rank (diamonds)")
    sent.set_ylim(0, 1.8 * data["megabytes_per_step_and_rank"].max())  # diamonds stay below the ratios over the bars
    sent.spines["right"].set_visible(True)
    sent.grid(visible=False)
