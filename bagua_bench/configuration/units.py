"""Human units at the edge of the configuration; inside the suite everything is bytes, bits per second and seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
BITS_PER_SECOND = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
LATENCY = {unit: SECONDS[unit] for unit in ("us", "ms", "s")}
FRACTION = {"%": 0.01}

SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
"""Units in which results are shown; configurations use those above."""

_SIMILAR = 0.4  # gbps and gb are this similar to gbit


def parse(key: str, text: object, units: Mapping[str, float]) -> float:
    """'10MiB' with the units BYTES is 10485760.0. ValueError with the key, the text and the units allowed."""
    match = re.fullmatch(r"\s*(-?)\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([a-zA-Z%/]*)\s*", str(text))
    sign, number, given = match.groups() if match else ("", "10", "")
    names = {unit.lower(): unit for unit in units}
    if match and not sign and given.lower() in names:
        return float(number) * units[names[given.lower()]]
    close = [*get_close_matches(given.lower(), names, 1, _SIMILAR), list(names)[-2:][0]]
    negative = "must not be negative; " * bool(sign)
    example = f"{number}{names[close[0]]}"
    raise ValueError(f"{key}={text}: {negative}expected a number and a unit ({', '.join(units)}), as in {example}")


def seconds(key: str, value: object) -> object:
    """A time of computing: '400ms' is 0.4; what is no text stays, and is seconds. ValueError as in `parse`."""
    if not isinstance(value, str):
        return value
    try:
        return parse(key, value, SECONDS)
    except ValueError as error:
        raise ValueError(f"{error}, or a number of seconds") from None


def text(value: float, units: Mapping[str, float]) -> str:
    """The shortest way to write a value: 0.005 with the units SECONDS is '5ms'."""
    unit = _unit(value, units)
    return f"{value / units[unit]:.10g}{unit}"


def amount(value: float, units: Mapping[str, float]) -> str:
    """A result for people: '386.2 Mbit/s'."""
    unit = _unit(value, units)
    return f"{value / units[unit]:.4g} {unit}"


def duration(seconds: float) -> str:
    """A time for people: '12.3 ms', '2.5 min'."""
    if seconds >= 120:
        return f"{seconds / 60:.4g} min"
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"


def durations(seconds: Sequence[float]) -> list[str]:
    """Times for people, all in the unit that suits the median: ['533.1 ms', '3,498 ms']."""
    middle = sorted(seconds)[len(seconds) // 2]
    unit, size = ("min", 60.0) if middle >= 120 else ("s", 1.0) if middle >= 1 else ("ms", 1e-3)
    return [f"{_figures(value / size)} {unit}" for value in seconds]


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _unit(value: float, units: Mapping[str, float]) -> str:
    """The largest one that is not above the value, or the first."""
    fitting = (unit for unit, size in units.items() if size <= value)
    return max(fitting, key=units.__getitem__, default=next(iter(units)))
