"""Finds the layers of a task. Imports torch where no table has them."""

from __future__ import annotations

from functools import cache

from bagua_bench.cell import TaskPart
from bagua_bench.emulate.layers import TABLES, Layers, read


@cache
def _table(name: str) -> Layers:
    return read(TABLES / f"{name}.json")


def layers_of(task: TaskPart, shrink: float = 1.0) -> Layers:
    """The layers of a task, shrunk as asked: from its table at scale paper, else surveyed now (with torch).

    `cpu` has the parameters of `paper`, and the shares of its layers are to be those of the published input.
    """
    if task.scale in ("paper", "cpu") and (TABLES / f"{task.name}.json").exists():
        return _table(task.name).shrunk(shrink)
    from bagua_bench.emulate.survey import survey  # imports torch

    return survey(task).shrunk(shrink)
