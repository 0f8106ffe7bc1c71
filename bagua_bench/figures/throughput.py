"""Throughput of several algorithms on one task: bars with 95 % intervals over rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench import stats
from bagua_bench.figures import style
from bagua_bench.records import Record, comparable

AXES = ("algo",)
BASELINE = "ddp"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm: rounds, throughput, interval, ratio to DDP, whether it is a difference, A/A noise.

    ValueError if the records differ in more than the algorithm.
    """
    comparable(records, AXES)
    rounds: dict[str, list[Record]] = {}
    for record in records:
        rounds.setdefault(record["config"]["algo"]["name"], []).append(record)
    rates = {algo: [r["result"]["throughput"] for r in group] for algo, group in rounds.items()}
    noise = stats.noise(list(rates.values()))
    base = rates.get(BASELINE)
    rows = []
    for algo, values in rates.items():
        low, high = stats.mean_interval(values)
        sent = [sum(rank.values()) for r in rounds[algo] for rank in r["result"]["bytes_per_step"]]
        rows.append(
            {
                "algorithm": algo,
                "source": rounds[algo][0]["source"],
                "rounds": len(values),
                "samples_per_second": float(np.mean(values)),
                "low": low,
                "high": high,
                "ratio_to_ddp": float(np.mean(values) / np.mean(base)) if base else None,
                "faster_than_ddp": stats.is_faster(values, base, noise) if base else None,
                "slower_than_ddp": stats.is_faster(base, values, noise) if base else None,
                "aa_noise": noise,
                "megabytes_per_step_and_rank": float(np.mean(sent)) / 1e6,
            }
        )
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, with the ratio to DDP above each."""
    for position, row in enumerate(data.itertuples()):
        error = [[row.samples_per_second - row.low], [row.high - row.samples_per_second]]
        axes.bar(position, row.samples_per_second, yerr=error, capsize=4, **style.bar(row.algorithm, row.source))
        if row.ratio_to_ddp is not None:
            axes.annotate(
                f"{row.ratio_to_ddp:.2f}x", (position, row.high), (0, 3), "data", "offset points", ha="center"
            )
    axes.set_xticks(range(len(data)), list(data["algorithm"]), rotation=20)
    axes.set_ylabel("samples per second")
    axes.set_title(
        f"{', '.join(sorted(set(data['source'])))}; A/A noise ±{100 * data['aa_noise'].iloc[0]:.1f} %", fontsize=9
    )
    axes.margins(y=0.12)
