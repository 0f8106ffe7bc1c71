"""Finds the layers of a task. Imports torch where no table has them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from bagua_bench.configuration.cell import TaskPart
from bagua_bench.machine.layers import TABLES, Layers, read


@cache
def _table(name: str) -> Layers:
    return read(TABLES / f"{name}.json")


def layers_of(task: TaskPart, shrink: float = 1.0) -> Layers:
    """The layers of a task, shrunk as asked: from its table at scale paper, otherwise from its model (with torch).

    Scale `cpu` has the parameters of `paper`, and its layers keep the shares that they have for the published input.
    An epoch of generated data has as many samples as asked for.
    """
    samples = task.options.get("samples")
    layers = _layers_of(task)
    return (layers if samples is None else replace(layers, samples_per_epoch=samples)).shrunk(shrink)


def _layers_of(task: TaskPart) -> Layers:
    if task.scale in ("paper", "cpu") and (TABLES / f"{task.name}.json").exists():
        return _table(task.name)
    from bagua_bench.machine.tabulate import tabulate  # imports torch

    return tabulate(task)
