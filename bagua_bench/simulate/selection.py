"""Which records a fit uses: a text of settings, KEY=VALUE,VALUE ..., that a record's configuration has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

Compose = Callable[[Sequence[str]], dict[str, Any]]
"""Resolves overrides of the command line to a configuration in plain units."""


@dataclass(frozen=True)
class Selection:
    """Settings and the plain values that each may have; none select everything."""

    text: str
    allowed: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...]

    @classmethod
    def read(cls, text: str, compose: Compose) -> Selection:
        """From `task=vgg16 network.bandwidth=10gbit,25gbit`. ValueError for a setting that does not exist."""
        return cls(text, tuple(_setting(part, compose) for part in text.split()))

    def __contains__(self, cell: dict[str, Any]) -> bool:
        """Whether a resolved configuration has all the settings."""
        return all(_value(cell, path) in values for path, values in self.allowed)


def _setting(part: str, compose: Compose) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    try:
        override = OverridesParser.create().parse_override(part)
        key = str(override.key_or_group)
        swept = override.is_sweep_override()
        values = list(override.sweep_string_iterator()) if swept else [part.partition("=")[2]]
        cells = [compose([f"{key}={value}"]) for value in values]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"--fit {part}: expected settings as on the command line, KEY=VALUE,VALUE: {why}") from None
    path = (key, "name") if "." not in key and isinstance(cells[0].get(key), dict) else tuple(key.split("."))
    return path, tuple(_value(cell, path) for cell in cells)


def _value(cell: dict[str, Any], path: Sequence[str]) -> Any:
    found: Any = cell
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
