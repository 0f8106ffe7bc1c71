"""The work of the ranks' batches where samples differ: how much time forward and backward take of the usual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import Protocol

from bagua_bench.configuration.cell import TaskPart
from bagua_bench.configuration.components import build

Loads = tuple[float, ...]
"""Of one batch, or the mean of a step's batches: an entry per rank; 1 is a batch of the usual work."""


class Uneven(Protocol):
    """The part of a task that says how much work its batches are."""

    samples_per_epoch: int

    def work(self, size: int, seed: int) -> Iterator[Loads] | None: ...


def task_of(part: TaskPart) -> Uneven | None:
    """The task whose batches differ in work, None for any other; imports torch."""
    return build(part.target, part.options) if part.uneven else None


def of_steps(task: Uneven | None, size: int, seed: int, steps: range, accumulate: int) -> list[Loads] | None:
    """The mean load of the batches of some steps of a run, counted from its first untimed one; None: all are alike."""
    batches = None if task is None else task.work(size, seed)
    if batches is None:
        return None
    found = islice(batches, steps.start * accumulate, steps.stop * accumulate)
    return [_mean(step) for step in zip(*[found] * accumulate, strict=True)]


def imbalance(steps: Sequence[Loads] | None) -> float | None:
    """The largest load over the mean of all ranks', mean over the steps; None where all batches are alike."""
    return None if steps is None else fmean(max(ranks) / fmean(ranks) for ranks in steps)


def _mean(batches: Sequence[Loads]) -> Loads:
    return tuple(fmean(loads) for loads in zip(*batches, strict=True))
