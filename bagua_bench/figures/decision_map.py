"""Which algorithm is the fastest at every bandwidth and latency, and how much faster than DDP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from bagua_bench.configuration import facts
from bagua_bench.figures import style
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "network.bandwidth", "network.latency", "network.name")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per bandwidth and latency: the fastest algorithm, its step time in seconds, its speed-up over DDP.

    ValueError if the records differ in more than algorithm, bandwidth and latency, or if DDP is not among them.
    """
    comparable(records, AXES)
    rows = [
        {
            "gbit_per_s": record["config"]["network"]["bandwidth"] / 1e9,
            "latency_ms": record["config"]["network"]["latency"] * 1e3,
            "algorithm": record["config"]["algo"]["name"],
            "step_seconds": float(np.mean(record["result"]["step_seconds"])),
            "source": record["source"],
            "compute": record["config"].get("compute", {}).get("name"),
            "cluster": record["config"]["cluster"]["name"],
        }
        for record in records
    ]
    data = pd.DataFrame(rows)
    if facts.baseline() not in set(data["algorithm"]):
        raise ValueError(f"a decision map needs records of algo={facts.baseline()} to compare with")
    place = ["gbit_per_s", "latency_ms"]
    base = data[data["algorithm"] == facts.baseline()].set_index(place)["step_seconds"].rename("ddp_seconds")
    best = data.loc[data.groupby(place)["step_seconds"].idxmin()].join(base, on=place)
    best["speed_up"] = best["ddp_seconds"] / best["step_seconds"]
    return best.reset_index(drop=True)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A map coloured by the fastest algorithm, with contours of the speed-up over DDP."""
    names = sorted(set(data["algorithm"]))
    codes = data.assign(code=[names.index(name) for name in data["algorithm"]])
    grid = codes.pivot(index="latency_ms", columns="gbit_per_s", values="code")
    gain = data.pivot(index="latency_ms", columns="gbit_per_s", values="speed_up")
    colours = [style.colour(name) for name in names]
    across, up = np.arange(len(grid.columns)), np.arange(len(grid.index))
    shown = ListedColormap(colours)
    axes.pcolormesh(across, up, grid, cmap=shown, vmin=-0.5, vmax=len(names) - 0.5, alpha=0.5, shading="nearest")
    lines = axes.contour(across, up, gain, levels=[1.1, 1.5, 2, 3, 5, 10, 20], colors="black", linewidths=0.8)
    axes.clabel(lines, fmt="%gx", fontsize=7)
    axes.set_xticks(across, [f"{value:g}" for value in grid.columns])
    axes.set_yticks(up, [f"{value:g}" for value in grid.index])
    axes.set_xlabel("bandwidth, Gbit/s")
    axes.set_ylabel("added latency one way, ms")
    origin = [", ".join(sorted(set(data["source"])))]
    origin += [f"{key}={name}" for key in ("compute", "cluster") for name in data[key].dropna().unique()]
    axes.set_title(f"fastest algorithm and its speed-up over DDP\n{', '.join(origin)}", fontsize=8)
    axes.legend(handles=[Patch(color=c, alpha=0.5, label=n) for n, c in zip(names, colours, strict=True)], fontsize=6)
