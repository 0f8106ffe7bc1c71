"""What overlap (O), fused buckets (F) and hierarchical communication (H) each contribute to throughput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench import stats
from bagua_bench.figures import style
from bagua_bench.records import Record, comparable

AXES = ("algo", "run.overlap", "run.bucket_size")
FULL = "all"


def variant(cell: dict[str, Any]) -> str:
    """Which of the three is off in a cell."""
    off = ["O"] * (not cell["run"]["overlap"]) + ["F"] * (cell["run"]["bucket_size"] == 0)
    off += ["H"] * (not cell["algo"].get("hierarchical", True))
    return f"without {', '.join(off)}" if off else FULL


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and variant: rounds, throughput with interval, ratio to the variant with all three.

    ValueError if the records differ in more than the algorithm and the three.
    """
    comparable(records, AXES)
    rates: dict[tuple[str, str], list[float]] = {}
    for record in records:
        key = (record["config"]["algo"]["name"], variant(record["config"]))
        rates.setdefault(key, []).append(record["result"]["throughput"])
    rows = []
    for (algo, name), values in rates.items():
        low, high = stats.mean_interval(values)
        full = rates.get((algo, FULL))
        rows.append(
            {
                "algorithm": algo,
                "variant": name,
                "source": records[0]["source"],
                "rounds": len(values),
                "samples_per_second": float(np.mean(values)),
                "low": low,
                "high": high,
                "ratio_to_all": float(np.mean(values) / np.mean(full)) if full else None,
            }
        )
    return pd.DataFrame(rows).sort_values(["algorithm", "variant"], ignore_index=True)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per variant."""
    variants = sorted(set(data["variant"]))
    algos = sorted(set(data["algorithm"]))
    width = 0.8 / len(algos)
    for row in data.itertuples():
        position = variants.index(row.variant) + width * (algos.index(row.algorithm) - (len(algos) - 1) / 2)
        error = [[row.samples_per_second - row.low], [row.high - row.samples_per_second]]
        label = row.algorithm if row.variant == variants[0] else None
        bar = style.bar(row.algorithm, row.source)
        axes.bar(position, row.samples_per_second, width, yerr=error, capsize=3, label=label, **bar)
    axes.set_xticks(range(len(variants)), variants)
    axes.set_ylabel("samples per second")
    axes.legend(fontsize=7, title=", ".join(sorted(set(data["source"]))), title_fontsize=7)
