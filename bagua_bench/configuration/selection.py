"""Selects cells by their settings, a text of the form KEY=VALUE,VALUE ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.configuration.cell import Cell

Compose = Callable[[Sequence[str]], Cell]
"""Resolves overrides of the command line to a cell."""


@dataclass(frozen=True)
class Selection:
    """Settings and the plain values allowed for each; without settings, every cell is selected."""

    text: str
    allowed: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...]

    @classmethod
    def read(cls, text: str, compose: Compose, option: str) -> Selection:
        """From `task=vgg16 network.bandwidth=10gbit,25gbit`. ValueError for a setting that does not exist.

        option: where the user wrote it, for the message.
        """
        return cls(text, tuple(_setting(part, compose, option) for part in text.split()))

    def __contains__(self, cell: Cell) -> bool:
        """Whether a cell has all the settings."""
        config = cell.to_json()
        return all(_value(config, path) in values for path, values in self.allowed)


def _setting(part: str, compose: Compose, option: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    try:
        override = OverridesParser.create().parse_override(part)
        key = str(override.key_or_group)
        swept = override.is_sweep_override()
        values = list(override.sweep_string_iterator()) if swept else [part.partition("=")[2]]
        cells = [compose([f"{key}={value}"]).to_json() for value in values]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{option}{part}: expected settings as on the command line, KEY=VALUE,VALUE: {why}") from None
    path = (key, "name") if "." not in key and isinstance(cells[0].get(key), dict) else tuple(key.split("."))
    return path, tuple(_value(cell, path) for cell in cells)


def _value(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
