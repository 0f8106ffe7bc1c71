"""Which algorithm is the fastest at every bandwidth and latency, and how much faster than DDP; one map per size."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from bagua_bench.configuration import facts
from bagua_bench.figures import style
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "network.bandwidth", "network.latency", "network.name", "cluster.servers")
PLACE = {"gbit_per_s": "Bandwidth, Gbit/s", "latency_ms": "Latency one way, ms", "servers": "Servers"}
"""Columns of what a reader chooses, and their names."""
TIE = 1.06
"""Whoever leads by less may not be the fastest: the simulator's mean error (docs/validation.md)."""


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per bandwidth, latency and number of servers: the fastest algorithm, its step time in seconds, and its
    speed-up over DDP.

    `lead`: the step time of the `runner_up` over that of the fastest. ValueError as of `ranked`.
    """
    return pd.DataFrame([_fastest(rows) for _, rows in ranked(records).groupby(list(PLACE))])


def ranked(records: Sequence[Record]) -> pd.DataFrame:
    """One row per bandwidth, latency, number of servers and algorithm, with its speed-up over DDP.

    ValueError if the records differ in more than these, or if DDP is not among them.
    """
    comparable(records, AXES)
    rows = [
        {
            "gbit_per_s": record["config"]["network"]["bandwidth"] / 1e9,
            "latency_ms": record["config"]["network"]["latency"] * 1e3,
            "servers": record["config"]["cluster"]["servers"],
            "algorithm": record["config"]["algo"]["name"],
            "step_seconds": float(np.mean(record["result"]["step_seconds"])),
            "source": record["source"],
            "task": record["config"]["task"]["name"],
            "compute": record["config"].get("compute", {}).get("name"),
            "cluster": record["config"]["cluster"]["name"],
        }
        for record in records
    ]
    data = pd.DataFrame(rows)
    ddp = data[data["algorithm"] == facts.baseline()].set_index(list(PLACE))["step_seconds"].rename("ddp_seconds")
    if ddp.empty:
        raise ValueError(f"a decision map needs records of algo={facts.baseline()} to compare with")
    data = data.join(ddp, on=list(PLACE))
    return data.assign(speed_up=data["ddp_seconds"] / data["step_seconds"])


def _fastest(rows: pd.DataFrame) -> dict[Hashable, Any]:
    """Of one place, beside whoever comes second."""
    first, *others = rows.sort_values("step_seconds", kind="stable").to_dict("records")
    second = others[0] if others else {"algorithm": None, "step_seconds": np.inf}
    lead = second["step_seconds"] / first["step_seconds"]
    return {**first, "runner_up": second["algorithm"], "lead": lead}


def parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A map per number of servers; without a name if there is only one."""
    found = {f"{servers}_servers": rows.reset_index(drop=True) for servers, rows in data.groupby("servers")}
    return found if len(found) > 1 else dict.fromkeys([""], data)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A map coloured by the fastest algorithm, with its speed-up over DDP in each cell; ties are hatched."""
    rates, latencies = sorted(set(data["gbit_per_s"])), sorted(set(data["latency_ms"]))
    tied = False
    for row in data.itertuples():
        corner = rates.index(row.gbit_per_s) - 0.5, latencies.index(row.latency_ms) - 0.5
        tie = row.lead < TIE
        tied |= tie
        look: dict[str, Any] = {"facecolor": style.colour(row.algorithm), "alpha": 0.55, "edgecolor": "white"}
        axes.add_patch(Rectangle(corner, 1, 1, hatch="///" if tie else None, **look))
        middle = corner[0] + 0.5, corner[1] + 0.5
        axes.annotate(f"{row.speed_up:.3g}x", middle, ha="center", va="center", fontsize=9)
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(-0.5, len(latencies) - 0.5)
    axes.set_xticks(range(len(rates)), [f"{value:g}" for value in rates])
    axes.set_yticks(range(len(latencies)), [f"{value:g}" for value in latencies])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_xlabel("bandwidth, Gbit/s")
    axes.set_ylabel("added latency one way, ms")
    origin = [", ".join(sorted(set(data["source"])))]
    origin += [f"{servers} servers" for servers in data["servers"].unique()]
    origin += [f"{key}={name}" for key in ("compute", "cluster") for name in data[key].dropna().unique()]
    axes.set_title(f"fastest algorithm, and its speed-up over DDP\n{', '.join(origin)}")
    names = sorted(set(data["algorithm"]))
    known = [Patch(facecolor=style.colour(name), alpha=0.55, label=style.wrapped(name)) for name in names]
    tie = Patch(facecolor="white", edgecolor="grey", hatch="///", label=f"lead below {100 * (TIE - 1):.0f} %")
    style.legend(axes, handles=[*known, tie] if tied else known)
