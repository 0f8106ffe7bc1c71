"""Ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Steps(Protocol):
    """What `join` needs of an engine."""

    steps: int

    def give_up(self) -> None: ...
    def step(self) -> None: ...


def join(engine: Steps, batches: Iterable[T], more: Callable[[bool], bool | None]) -> Iterator[T]:
    """Yield own batches, one a step; then take part in the others' steps, as long as somebody has one.

    more(own): whether some rank has a batch, collective; None: nobody waits for anybody.
    """
    for batch in batches:
        more(True)
        before = engine.steps
        yield batch
        if engine.steps != before + 1:
            raise RuntimeError(f"join: {engine.steps - before} steps were taken for a batch; call step() once for each")
    while more(False):
        engine.give_up()
        engine.step()
