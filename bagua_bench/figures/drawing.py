"""From a figure's module and its rows to files: PDF, PNG, CSV, and a caption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bagua_bench.figures import rates, style

_SUFFIXES = {".pdf": ("Title", {"CreationDate": None}), ".png": ("Description", {})}  # equal rows give equal files


def caption(module: ModuleType, rows: pd.DataFrame) -> str:
    """What a figure shows, and where its numbers come from: for captions, and for readers who cannot see it.

    It is the sentence with which the figure's module begins.
    """
    sentence = str(module.__doc__).partition("\n")[0].rstrip(".")
    origin = f" ({rates.origin(rows)})" if "source" in rows else ""
    return f"{sentence}{origin}."


def figure(module: ModuleType, rows: pd.DataFrame) -> Figure:
    """The drawn figure. A module's `panels` says what stands side by side, if not only what its `draw` does."""
    draws: Sequence[Callable[[pd.DataFrame, Axes], None]]
    draws = module.panels(rows) if hasattr(module, "panels") else [module.draw]
    with matplotlib.rc_context(style.LOOK):
        drawn = Figure((style.WIDTH * (0.5 + 0.5 * len(draws)), style.HEIGHT), dpi=style.DPI, layout="constrained")
        for number, draw in enumerate(draws, 1):
            draw(rows, drawn.add_subplot(1, len(draws), number))
    return drawn


def write(module: ModuleType, rows: pd.DataFrame, path: Path) -> None:
    """Write PATH.pdf, .png, .csv and, with a caption, .txt."""
    said, drawn = caption(module, rows), figure(module, rows)
    with matplotlib.rc_context(style.LOOK):
        for suffix, (key, own) in _SUFFIXES.items():
            drawn.savefig(path.with_suffix(suffix), metadata={key: said, **own})
    path.with_suffix(".txt").write_text(f"{said}\n")
    rows.to_csv(path.with_suffix(".csv"), index=False)
