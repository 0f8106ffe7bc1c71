"""Ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Steps(Protocol):
    """What `join` needs of an engine."""

    steps: int


def join(engine: Steps, batches: Iterable[T], anyone: Callable[[bool], bool | None]) -> Iterator[T | None]:
    """Yield own batches, one a step; then None, as long as somebody has one.

    anyone(own): whether some rank has a batch, collective; None: nobody waits for anybody.
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
