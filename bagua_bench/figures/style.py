"""How figures show a number's source: measured is filled, emulated lighter, simulated hollow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bagua_bench.configuration import facts

_PUBLISHED = {"pytorch_ddp": "ddp", "qadam_1bit": "qadam"}
"""Names of systems in published figures, and the options of the group algo that they are."""
_ALPHA = {"measured": 1.0, "emulated": 0.75}


def bar(algo: str, source: str) -> dict[str, Any]:
    """Keyword arguments of a bar for an algorithm's number from `source`; simulated ones are hollow."""
    if source == "simulated":
        return {"color": "none", "edgecolor": colour(algo), "linestyle": "--", "linewidth": 1.2}
    return {"color": colour(algo), "edgecolor": "black", "linewidth": 0.6, "alpha": _ALPHA[source]}


def line(algo: str, sources: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments of a line of an algorithm's numbers, all from one source."""
    [source] = set(sources)
    if source == "simulated":
        return {**simulated(algo), "capsize": 3}
    return {"color": colour(algo), "marker": "o", "capsize": 3, "linewidth": 1.2, "alpha": _ALPHA[source]}


def simulated(algo: str) -> dict[str, Any]:
    """Keyword arguments of a line of an algorithm's simulated numbers."""
    hollow = {"marker": "o", "markerfacecolor": "none", "markersize": 5}
    return {"color": colour(algo), "linestyle": "--", "linewidth": 1.0, **hollow}


def colour(algo: str) -> str:
    """The colour of an algorithm or peer in every figure."""
    return facts.option(_PUBLISHED.get(algo, algo)).colour
