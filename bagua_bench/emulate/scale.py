"""Scale models: emulated or simulated runs that send so many times less (spec: network 9). No torch import."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from bagua_bench import facts, units


def shrink_of(cell: dict[str, Any]) -> float:
    """How many times smaller a run is than what its configuration says; 1 where computing is real."""
    return float(cell["compute"]["shrink"]) if cell.get("mode") in ("emulate", "simulate") else 1.0


def scale_model(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell to run for a cell: rates, TCP windows and buckets shrunk as the tensors are; times stay as they are.

    What a transfer takes relative to computing and to the latency is then that of the original, with a fraction of
    the bytes: 100 Gbit/s networks fit on a small machine.
    """
    factor = shrink_of(cell)
    if factor == 1:
        return cell
    scaled = deepcopy(cell)
    for link in (scaled["network"], *scaled["cluster"]["server"].values()):
        if link.get("bandwidth") is not None:
            link["bandwidth"] /= factor
    scaled["network"]["tcp_window"] = int(scaled["network"]["tcp_window"] / factor)
    scaled["run"]["bucket_size"] = int(scaled["run"]["bucket_size"] / factor)
    for key in facts.algorithm(cell).in_bytes:
        value = scaled["algo"][key]
        scaled["algo"][key] = _smaller(f"algo.{key}", value, factor)
    return scaled


def _smaller(key: str, value: float | str, factor: float) -> float | str:
    """A number, or a text with a unit, divided."""
    if isinstance(value, str):
        return f"{int(units.parse(key, value, units.BYTES) / factor)}B"
    return value / factor
