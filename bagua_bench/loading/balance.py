"""How even the work of the ranks is over an epoch, by sampler and batching."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.machine import loads

COLUMNS = {
    "task": "{task}",
    "ranks": "{ranks}",
    "lengths in a batch": "{batching}",
    "sampler": "{sampler}",
    "steps": "{steps}",
    "mean work": "{mean:.3f}",
    "largest": "{largest:.3f}",
    "largest / mean": "{imbalance:.3f}",
    "in the worst step": "{worst:.3f}",
}
"""Titles and formats of the table. A batch of the task's one length is work of 1."""

_BASE = ("mode=simulate", "task.scale=paper", "cluster=4x1", "algo=gradient_allreduce")
_SAMPLERS, _BATCHINGS = ("random", "balanced"), ("mixed", "similar")


def rows(tasks: Sequence[str], overrides: Sequence[str], steps: int | None) -> list[dict[str, Any]]:
    """A row per task, batching and sampler, over so many steps (None: an epoch).

    ConfigError for a task whose samples are all alike.
    """
    found = []
    for name in tasks:
        for batching in _BATCHINGS:
            for sampler in _SAMPLERS:
                given = [*_BASE, f"task={name}", *overrides]
                if "sampler" not in compose_cell(given).task.options:
                    raise ConfigError(f"task={name}: its samples are all alike; allowed: tasks with task.sampler")
                cell = compose_cell([*given, f"task.sampler={sampler}", f"task.batching={batching}"])
                validate(cell)
                found.append(_row(cell, steps))
    return found


def _row(cell: Cell, steps: int | None) -> dict[str, Any]:
    task, ranks, options = loads.task_of(cell.task), cell.cluster.ranks, cell.task.options
    assert task is not None
    epoch = -(-task.samples_per_epoch // ranks) // cell.task.batch
    taken = loads.of_steps(task, ranks, cell.run.seed, range(steps or epoch), 1)
    assert taken is not None
    return {
        "task": cell.task.name,
        "ranks": ranks,
        "batching": options["batching"],
        "sampler": options["sampler"],
        "steps": len(taken),
        "mean": fmean(fmean(step) for step in taken),
        "largest": fmean(max(step) for step in taken),
        "imbalance": loads.imbalance(taken),
        "worst": max(max(step) / fmean(step) for step in taken),
    }
