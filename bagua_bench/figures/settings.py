"""With which settings a system was run: its own defaults, or the best that were searched for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import AlgoPart, Cell
from bagua_bench.figures import rates
from bagua_bench.results.records import Record, cell_of

DEFAULTS, TUNED = "defaults", "tuned"
KEYS = ("algo", "run.autotune")
"""In what records of systems with several settings may differ."""


def grouped(records: Sequence[Record], *key: Callable[[Cell], str]) -> dict[tuple[str, ...], list[Record]]:
    """The records, grouped by what the functions `key` return for their cells and, last, by settings.

    An engine is tuned where it tunes itself. A peer with several sets of options is tuned with the fastest of them, its
    own among these.
    """
    found: dict[tuple[str, ...], list[Record]] = {}
    for place, group in rates.grouped(records, *key).items():
        cells = rates.grouped(group, lambda cell: cell.id)
        for of_cell in cells.values():
            cell = cell_of(of_cell[0])
            if not facts.algorithm(cell.algo).peer:
                found[(*place, DEFAULTS if cell.run.autotune is None else TUNED)] = of_cell
            elif len(cells) == 1 or _is_own(cell.algo):
                found[(*place, DEFAULTS)] = of_cell
                if len(cells) > 1:
                    found[(*place, TUNED)] = max(cells.values(), key=lambda each: float(np.mean(rates.of(each))))
    return found


def of_bar(way: str) -> dict[str, Any]:
    """Keyword arguments by which a bar of tuned settings differs."""
    return {"hatch": "//"} if way == TUNED else {}


def of_line(way: str) -> dict[str, Any]:
    """Keyword arguments by which a line of tuned settings differs."""
    return {"linestyle": ":"} if way == TUNED else {}


def _is_own(algo: AlgoPart) -> bool:
    """Whether the options are those of its file."""
    own = conf_folder.option("algo", algo.name)
    return all(own[key] == value for key, value in algo.options.items())
