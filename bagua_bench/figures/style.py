"""How a number's source shows in a figure: measured is filled; later sources are lighter or hollow."""

from __future__ import annotations

from typing import Any

COLOURS = {
    "ddp": "#7f7f7f",
    "gradient_allreduce": "#1f77b4",
    "bytegrad": "#d62728",
    "qadam": "#ff7f0e",
    "decentralized": "#2ca02c",
    "low_precision_decentralized": "#98df8a",
    "async": "#9467bd",
}


def bar(algo: str, source: str) -> dict[str, Any]:
    """Keyword arguments of a bar for an algorithm's number from `source`."""
    assert source == "measured", source
    return {"color": COLOURS.get(algo, "#17becf"), "edgecolor": "black", "linewidth": 0.6}
