"""One look for all figures: a system is a colour and a marker, a number's source is how these are filled.

Measured is filled, emulated lighter, simulated hollow and dashed. Colours are of a palette that colour-blind readers
can tell apart (Okabe and Ito 2008) where systems are often drawn together, and no meaning rests on a colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes

from bagua_bench.configuration import facts

WIDTH, HEIGHT = 7.2, 4.2
"""Of a figure, inches."""
DPI = 200
LOOK: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,  # fonts are embedded whole, so that text can be searched and edited
}
"""Settings of matplotlib."""

_PUBLISHED = {"pytorch_ddp": "ddp", "qadam_1bit": "qadam"}
"""Names of systems in published figures, and the options of the group algo that they are."""
_ALPHA = {"measured": 1.0, "emulated": 0.75}


def bar(algo: str, source: str) -> dict[str, Any]:
    """Keyword arguments of a bar for an algorithm's number from `source`; simulated ones are hollow."""
    if source == "simulated":
        return {"color": "none", "edgecolor": colour(algo), "linestyle": "--", "linewidth": 1.5}
    return {"color": colour(algo), "edgecolor": "black", "linewidth": 0.6, "alpha": _ALPHA[source]}


def line(algo: str, sources: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments of a line of an algorithm's numbers, all from one source, and of their intervals."""
    [source] = set(sources)
    if source == "simulated":
        return {**simulated(algo), "capsize": 3}
    return {"color": colour(algo), "marker": marker(algo), "capsize": 3, "alpha": _ALPHA[source]}


def simulated(algo: str) -> dict[str, Any]:
    """Keyword arguments of a line of an algorithm's simulated numbers."""
    return {"color": colour(algo), "linestyle": "--", "marker": marker(algo), "markerfacecolor": "none"}


def published(algo: str) -> dict[str, Any]:
    """Keyword arguments of an algorithm's published points: filled, without a line."""
    return {"color": colour(algo), "linestyle": "none", "marker": marker(algo), "alpha": 0.6}


def colour(algo: str) -> str:
    """The colour of an algorithm or peer in every figure."""
    return _option(algo).colour


def marker(algo: str) -> str:
    """The marker of an algorithm or peer in every figure."""
    return _option(algo).marker


def name(algo: str) -> str:
    """The name of an algorithm or peer for readers."""
    return _option(algo).title


def wrapped(algo: str, width: int = 14) -> str:
    """The same in lines of so many letters, for the foot of a bar."""
    return fill(name(algo), width, break_long_words=False)


def legend(axes: Axes, **options: Any) -> None:
    """A legend beside the axes, where it covers no data."""
    axes.legend(**{"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, **options})


def option(label: str) -> str:
    """The option of the group algo that a published label stands for."""
    return _PUBLISHED.get(label, label)


def _option(algo: str) -> facts.AlgorithmFacts:
    return facts.option(option(algo))
