"""Ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Steps(Protocol):
    """The part of an engine that `join` needs."""

    steps: int


def join(engine: Steps, batches: Iterable[T], anyone: Callable[[bool], bool | None]) -> Iterator[T | None]:
    """Yield own batches, one a step; then None, as long as another rank has one.

    anyone(own): whether some rank has a batch, collective; None: no rank waits for another.
    """
    for batch in batches:
        anyone(True)
        before = engine.steps
        yield batch
        _expect_step(engine.steps - before)
    while anyone(False):
        before = engine.steps
        yield None
        _expect_step(engine.steps - before)


def _expect_step(taken: int) -> None:
    if taken != 1:
        raise RuntimeError(f"join: {taken} steps were taken for a batch; call step() once for each")
