"""End-to-end curves on a simulated time axis: published scores at predicted times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.figures import style

_METRICS = {"e2e_vgg16": "top1", "e2e_bert_large": "f1"}
_LABELS = {"pytorch_ddp": "ddp", "horovod": "horovod", "byteps": "byteps"}


def table(folder: Path, stretch: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    """One row per published point of a curve. `stretch`: predicted / published step by (figure, label)."""
    data = pd.read_csv(folder / "e2e_curves.csv")
    rows = []
    for point in data.to_dict("records"):
        figure, metric = str(point["figure"]), _METRICS.get(str(point["figure"]))
        label = _LABELS.get(str(point["system"]), str(point["algorithm"]))
        if point["metric"] != metric or (figure, label) not in stretch:
            continue
        published = float(point["x"])
        rows.append(
            {
                "figure": f"{figure}_{metric}",
                "label": label,
                "gpus": point["gpus"],
                "gbit_per_s": point["bandwidth_gbps"],
                "metric": f"{point['x_unit']} to {metric}",
                "level": float(point["value"]),
                "published": published,
                "predicted": published * stretch[figure, label],
                "error": stretch[figure, label] - 1,
            }
        )
    return rows


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Learning against time: published points are filled, the same levels at simulated times hollow."""
    for label, rows in data.groupby("label", sort=False):
        axes.plot(rows["published"], rows["level"], **style.published(str(label)))
        axes.plot(rows["predicted"], rows["level"], label=style.name(str(label)), **style.simulated(str(label)))
    unit, _, metric = str(data["metric"].iloc[0]).partition(" to ")
    axes.set_xlabel(f"time, {unit} (simulated for the hollow markers)")
    axes.set_ylabel(f"{metric}, % (published)")
    style.legend(axes)
