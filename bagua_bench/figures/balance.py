"""What balancing samples of different lengths brings: the time of an epoch by sampler and batching."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.figures import rates, style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, comparable

AXES = ("algo", "task.sampler", "task.batching")
_FIRST = "random"
_HATCHES = {"random": "", "balanced": "//"}
_MINUTE = 60.0


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per source, algorithm, batching and sampler: the time of an epoch, its ratio to the random sampler's.

    `imbalance` is the largest over the mean work of the ranks in a step. `faster_than_random` follows the suite's rule
    for claims; rounds of a simulation are all alike and claim nothing. ValueError if records of one source differ in
    more than the axes, or if one has batches that are all alike.
    """
    rows = []
    for source in sorted({record["source"] for record in records}):
        own = [record for record in records if record["source"] == source]
        comparable(own, AXES)
        if any(record["result"].get("imbalance") is None for record in own):
            raise ValueError("a record's batches are all alike: there is nothing to balance without task.sampler")
        rows += _rows(source, own)
    order = ["source", "algorithm", "batching", "sampler"]
    return pd.DataFrame(rows).sort_values(order, ascending=[True, True, True, False], ignore_index=True)


def _rows(source: str, records: Sequence[Record]) -> list[dict[str, object]]:
    keys = [lambda cell, key=key: str(cell.task.options[key]) for key in ("batching", "sampler")]
    cells = rates.grouped(records, rates.algorithm, *keys)
    noise = stats.noise([rates.of(group) for group in cells.values()])
    rows = []
    for (algo, batching, sampler), group in cells.items():
        base = cells.get((algo, batching, _FIRST), [])
        epochs = [record["result"]["epoch_seconds"] / _MINUTE for record in group]
        low, high = stats.mean_interval(epochs)
        compared = rates.compared(group, base, _FIRST, noise)
        rows.append(
            {
                "source": source,
                "algorithm": algo,
                "batching": batching,
                "sampler": sampler,
                "rounds": len(group),
                "epoch_minutes": float(np.mean(epochs)),
                "low": low,
                "high": high,
                "times_as_fast": float(np.mean(rates.of(group)) / np.mean(rates.of(base))) if base else None,
                "faster_than_random": compared["faster_than_random"],
                "aa_noise": noise,
                "imbalance": float(np.mean([record["result"]["imbalance"] for record in group])),
            }
        )
    return rows


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """A group of bars per algorithm and batching, with the imbalance above each bar."""
    groups = list(dict.fromkeys(zip(data["algorithm"], data["batching"], strict=True)))
    kinds = list(dict.fromkeys(zip(data["source"], data["sampler"], strict=True)))
    width = 0.8 / len(kinds)
    for row in data.itertuples():
        kind = kinds.index((row.source, row.sampler))
        position = groups.index((row.algorithm, row.batching)) + width * (kind - (len(kinds) - 1) / 2)
        error = [[row.epoch_minutes - row.low], [row.high - row.epoch_minutes]]
        look = {**style.bar(str(row.algorithm), str(row.source)), "hatch": _HATCHES[str(row.sampler)]}
        axes.bar(position, row.epoch_minutes, width, yerr=error, capsize=3, **look)
        axes.annotate(f"{row.imbalance:.2f}", (position, row.high), (0, 3), "data", "offset points", ha="center")
    names = [f"{style.name(algo)},\n{batching} lengths in a batch" for algo, batching in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set_ylabel("time of an epoch, minutes")
    axes.set_title("above each bar: largest / mean work of a step")
    for source, sampler in kinds:
        look = {**style.bar(str(data["algorithm"].iloc[0]), source), "hatch": _HATCHES[sampler]}
        axes.bar(0, 0, label=f"{sampler}, {source}", **look)
    axes.margins(y=0.12)
    style.legend(axes)
