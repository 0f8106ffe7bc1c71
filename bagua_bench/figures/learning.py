"""What relaxed training learns, whatever its speed: loss by step, and final accuracy, over several seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.figures import rates, style
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "run.seed")
WINDOW = 10
"""Steps over which a loss is averaged."""


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and window of steps: loss, and the accuracy at the end, as means and extremes over seeds.

    ValueError if the records differ in more than the algorithm and the seed.
    """
    comparable(records, AXES)
    rows = []
    for (algo,), group in rates.grouped(records, rates.algorithm).items():
        top1 = [record["result"]["metrics"]["top1"] for record in group]
        losses = np.array([record["result"]["losses"] for record in group])
        windows = losses[:, : losses.shape[1] // WINDOW * WINDOW].reshape(len(group), -1, WINDOW).mean(2)
        rows += [
            {
                "algorithm": algo,
                "source": group[0]["source"],
                "seeds": len(group),
                "step": (number + 1) * WINDOW,
                **_over_seeds("loss", windows[:, number]),
                **_over_seeds("top1", top1),
            }
            for number in range(windows.shape[1])
        ]
    return pd.DataFrame(rows)


def _over_seeds(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: float(np.mean(values)), f"{name}_least": min(values), f"{name}_most": max(values)}


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A line of losses per algorithm, in a band from the lowest to the highest over seeds; accuracies in the legend."""
    for algo, rows in data.groupby("algorithm", sort=False):
        last, colour = rows.iloc[-1], style.colour(str(algo))
        said = f"{style.name(str(algo))}: {last['top1']:.1%} ({last['top1_least']:.1%} to {last['top1_most']:.1%})"
        axes.plot(rows["step"], rows["loss"], label=said, linewidth=1.2, color=colour)
        extremes = rows["loss_least"].to_numpy(), rows["loss_most"].to_numpy()
        axes.fill_between(rows["step"].to_numpy(), *extremes, alpha=0.15, linewidth=0, color=colour)
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {WINDOW} steps")
    axes.set_title(f"{', '.join(sorted(set(data['source'])))}; {data['seeds'].max()} seeds, least to most")
    style.legend(axes, title="top-1 accuracy after the last step")
