"""Finds the layers of a task. Imports torch where no table has them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

from bagua_bench.configuration import facts, own_model, plain
from bagua_bench.configuration.cell import TaskPart
from bagua_bench.machine.assumed import assumed
from bagua_bench.machine.layers import TABLES, Layers, read


@cache
def _table(name: str) -> Layers:
    return read(TABLES / f"{name}.json")


def layers_of(task: TaskPart, shrink: float = 1.0) -> Layers:
    """The layers of a task, shrunk as asked: from its table at scale paper, otherwise from its model (with torch).

    Those of a described model of which only the number of parameters is known are assumed. Scale `cpu` has the
    parameters of `paper`, and its layers keep the shares that they have for the published input. An epoch of generated
    data has as many samples as asked for.
    """
    samples = task.options.get("samples")
    layers = _layers_of(task)
    return (layers if samples is None else replace(layers, samples_per_epoch=samples)).shrunk(shrink)


def _layers_of(task: TaskPart) -> Layers:
    if task.scale in ("paper", "cpu") and (TABLES / f"{task.name}.json").exists():
        return _table(task.name)
    if facts.task(task).described and (parameters := own_model.parameters_of(task)) is not None:
        return assumed(task, parameters)
    return _tabulated(json.dumps(plain.dump(replace(task, step_seconds=None)), sort_keys=True))


@cache
def _tabulated(task: str) -> Layers:
    from bagua_bench.machine.tabulate import tabulate  # imports torch

    return tabulate(TaskPart.from_plain(json.loads(task)))
