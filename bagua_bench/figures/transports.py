"""What a transport changes: throughput of each algorithm over each transport, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench import stats
from bagua_bench.figures import style
from bagua_bench.records import Record, comparable

AXES = ("algo", "transport")
BASELINE = "gloo"
_HATCHES = ("", "//", "..", "xx")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per algorithm and transport: rounds, throughput with interval, ratio to gloo, whether it is a difference.

    ValueError if the records differ in more than the two.
    """
    comparable(records, AXES)
    rates: dict[tuple[str, str], list[float]] = {}
    for record in records:
        key = (record["config"]["algo"]["name"], record["config"]["transport"]["backend"])
        rates.setdefault(key, []).append(record["result"]["throughput"])
    noise = stats.noise(list(rates.values()))
    rows = []
    for (algo, transport), values in rates.items():
        low, high = stats.mean_interval(values)
        base = rates.get((algo, BASELINE))
        rows.append(
            {
                "algorithm": algo,
                "transport": transport,
                "source": records[0]["source"],
                "rounds": len(values),
                "samples_per_second": float(np.mean(values)),
                "low": low,
                "high": high,
                "ratio_to_gloo": float(np.mean(values) / np.mean(base)) if base else None,
                "faster_than_gloo": stats.is_faster(values, base, noise) if base else None,
                "aa_noise": noise,
            }
        )
    return pd.DataFrame(rows).sort_values(["algorithm", "transport"], ignore_index=True)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """Bars of `table`'s rows, one group per algorithm, with the ratio to gloo above each."""
    algos, transports = sorted(set(data["algorithm"])), sorted(set(data["transport"]), key=lambda t: t != BASELINE)
    width = 0.8 / len(transports)
    for row in data.itertuples():
        number = transports.index(row.transport)
        position = algos.index(row.algorithm) + width * (number - (len(transports) - 1) / 2)
        error = [[row.samples_per_second - row.low], [row.high - row.samples_per_second]]
        label = row.transport if row.algorithm == algos[0] else None
        bar = {**style.bar(row.algorithm, row.source), "hatch": _HATCHES[number % len(_HATCHES)], "label": label}
        axes.bar(position, row.samples_per_second, width, yerr=error, capsize=3, **bar)
        if row.ratio_to_gloo is not None:
            place = (position, row.high)
            axes.annotate(f"{row.ratio_to_gloo:.2f}x", place, (0, 3), "data", "offset points", ha="center")
    axes.set_xticks(range(len(algos)), algos)
    axes.set_ylabel("samples per second")
    axes.margins(y=0.12)
    axes.legend(fontsize=7, title=", ".join(sorted(set(data["source"]))), title_fontsize=7)
