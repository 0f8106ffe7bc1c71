"""Human units at the edge of the configuration; inside the suite everything is bytes, bits per second and seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
BITS_PER_SECOND = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
FRACTION = {"%": 0.01}


def parse(key: str, text: object, units: Mapping[str, float]) -> float:
    """'10MiB' with the units BYTES is 10485760.0. ValueError with the key, the text and the units allowed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([a-zA-Z%]+)\s*", str(text))
    unit = next((unit for unit in units if match and unit.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ValueError(
            f"{key}={text}: expected a number and a unit ({', '.join(units)}), as in 10{list(units)[-2:][0]}"
        )
    return float(match[1]) * units[unit]


def text(value: float, units: Mapping[str, float]) -> str:
    """The shortest way to write a value: 0.005 with the units SECONDS is '5ms'."""
    unit = max(
        (unit for unit, size in units.items() if size <= value), key=units.__getitem__, default=next(iter(units))
    )
    return f"{value / units[unit]:.10g}{unit}"
