"""Throughputs over interleaved rounds: as rows of a table, and as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration.cell import Cell
from bagua_bench.figures import style
from bagua_bench.results import stats
from bagua_bench.results.records import Record, cells_of


def grouped(records: Sequence[Record], *key: Callable[[Cell], str]) -> dict[tuple[str, ...], list[Record]]:
    """The records, grouped by what the functions `key` return for their cells, in the order of the rounds."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    names: dict[int, tuple[str, ...]] = {}  # by a cell's place in memory: `cells` keeps it there
    cells = cells_of(records)
    for record, cell in zip(records, cells, strict=True):
        if id(cell) not in names:
            names[id(cell)] = tuple(part(cell) for part in key)
        groups.setdefault(names[id(cell)], []).append(record)
    return groups


def algorithm(cell: Cell) -> str:
    """Name of a cell's algorithm."""
    return cell.algo.name


def of(records: Sequence[Record]) -> list[float]:
    """Samples per second of each record."""
    return [record["result"]["throughput"] for record in records]


def row(records: Sequence[Record], baseline: str, base: Sequence[Record]) -> dict[str, Any]:
    """Columns of one cell: source, rounds, throughput with its 95 % interval, ratio to `base` (None without one)."""
    values = of(records)
    low, high = stats.mean_interval(values)
    return {
        "source": records[0]["source"],
        "rounds": len(values),
        "samples_per_second": float(np.mean(values)),
        "low": low,
        "high": high,
        f"ratio_to_{baseline}": float(np.mean(values) / np.mean(of(base))) if base else None,
        "staleness_steps": staleness(records),
    }


def compared(records: Sequence[Record], base: Sequence[Record], baseline: str, noise: float) -> dict[str, Any]:
    """Columns: whether a cell is faster or slower than `base` by the suite's rule for claims, and the A/A noise."""
    own, other = of(records), of(base)
    return {
        f"faster_than_{baseline}": stats.is_faster(own, other, noise) if base else None,
        f"slower_than_{baseline}": stats.is_faster(other, own, noise) if base else None,
        "aa_noise": noise,
    }


def noises(cells: Mapping[tuple[str, ...], Sequence[Record]], places: int) -> dict[tuple[str, ...], float]:
    """The A/A noise of each place, by the first `places` parts of the keys: the worst of the cells there.

    A place is a configuration without its algorithm: what makes rounds differ on one network says nothing of another.
    """
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for key, group in cells.items():
        found.setdefault(key[:places], []).append(of(group))
    return {place: stats.noise(values) for place, values in found.items()}


def staleness(records: Sequence[Record]) -> float | None:
    """Mean age in steps of the averages when applied; None if averaging happens in every step, or if it is unknown."""
    found = [record["result"].get("averaging") for record in records]
    ages = [one["staleness_steps"] for one in found if one and one["staleness_steps"] is not None]
    return float(np.mean(ages)) if ages else None


def label(name: str, ages: Sequence[float | None]) -> str:
    """A system's name, with the staleness of its averages if it is known."""
    known = sorted(age for age in ages if age is not None and not np.isnan(age))
    if not known:
        return name
    ends = f"{known[0]:.2g}" if f"{known[0]:.2g}" == f"{known[-1]:.2g}" else f"{known[0]:.2g} to {known[-1]:.2g}"
    return f"{name}\n({ends} steps stale)"


def draw(axes: Axes, position: float, row: Any, width: float = 0.8, ratio: float | None = None, **bar: Any) -> None:
    """A bar for a row of a table, with its interval, and the ratio above it if there is one."""
    error = [[row.samples_per_second - row.low], [row.high - row.samples_per_second]]
    look = {**style.bar(row.algorithm, row.source), **bar}
    axes.bar(position, row.samples_per_second, width, yerr=error, capsize=3, **look)
    if ratio is not None:
        axes.annotate(f"{ratio:.2f}x", (position, row.high), (0, 3), "data", "offset points", ha="center")


def title(axes: Axes, data: pd.DataFrame) -> None:
    """Where the numbers come from, how many there are of each, and how far a cell differs from itself."""
    axes.set_title(origin(data))


def origin(data: pd.DataFrame) -> str:
    """The words for it, from the columns `source`, `rounds` and `aa_noise` as far as they are there."""
    words = [", ".join(sorted(set(data["source"].dropna())))]
    several = "rounds" not in data or data["rounds"].max() > 1
    if "rounds" in data:
        words.append(f"n = {_ends(data['rounds'], 'g')}" + (", with 95 % intervals" if several else ""))
    if several and "aa_noise" in data and data["aa_noise"].notna().any():
        words.append(f"A/A noise ±{_ends(100 * data['aa_noise'], '.1f')} %")
    return "; ".join(words)


def _ends(values: pd.Series[float], form: str) -> str:
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (values.min(), values.max())))
