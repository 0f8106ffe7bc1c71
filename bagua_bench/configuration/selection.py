"""Selects cells by their settings, a text of the form KEY=VALUE,VALUE ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.configuration.cell import Cell

_NOTHING = ("null", "false", "False", "none")
"""Texts that stand for a value that a cell does not have."""
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
        asked = [_parsed(part, option) for part in text.split()]
        allowed = []
        for place, (key, values) in enumerate(asked):
            # with the others, as an algorithm's options exist only with the algorithm
            others = [f"{other}={own[0]}" for number, (other, own) in enumerate(asked) if number != place]
            allowed.append(_allowed(key, values, partial(_behind, compose, others), option))
        return cls(text, tuple(allowed))

    def __contains__(self, cell: Cell) -> bool:
        """Whether a cell has all the settings."""
        config = cell.to_json()
        return all(_value(config, path) in values for path, values in self.allowed)


def _parsed(part: str, option: str) -> tuple[str, list[str]]:
    """The key and the values of KEY=VALUE,VALUE."""
    try:
        override = OverridesParser.create().parse_override(part)
    except HydraException as error:
        raise _refused(f"{option}{part}", error) from None
    swept = override.is_sweep_override()
    return str(override.key_or_group), [*override.sweep_string_iterator()] if swept else [part.partition("=")[2]]


def _behind(compose: Compose, others: Sequence[str], setting: str) -> Cell:
    return compose([*others, setting])


def _allowed(
    key: str, values: Sequence[str], compose: Callable[[str], Cell], option: str
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The place of a key in a cell's JSON, and the values there that the given texts stand for."""
    said = f"{option}{key}={','.join(values)}"
    try:
        cells = [compose(f"{key}={value}").to_json() for value in values]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _refused(said, error) from None
    path = (key, "name") if "." not in key and isinstance(cells[0].get(key), dict) else tuple(key.split("."))
    found = tuple(_value(cell, path) for cell in cells)
    if any(one is None and value not in _NOTHING for one, value in zip(found, values, strict=True)):
        raise ValueError(f"{said}: no configuration of a cell has {'.'.join(path)}")
    return path, found


def _refused(said: str, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"{said}: expected settings as on the command line, KEY=VALUE,VALUE: {why}")


def _value(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
