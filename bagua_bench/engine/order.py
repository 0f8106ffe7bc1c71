"""The in-order scheduler: buckets become ready in any order and are launched in theirs (docs/design.md, The engine)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)

TWICE = (
    "a gradient was produced twice in one step: wrap all but the last backward() of a step in engine.no_sync(); "
    "a backward() that only passes through this model, as a GAN's generator's does through the discriminator, in its "
    "engine.no_sync() too, cleared by zero_grad(); after a backward() that failed call engine.give_up()"
)


class InOrder(Generic[Member]):
    """Launches bucket 0, 1, ... of a step, each once all its members are ready and the one before was launched.

    All ranks launch in the same order, whatever the order of readiness: collectives cannot deadlock.
    """

    def __init__(self, members: Sequence[Iterable[Member]], launch: Callable[[int], None]) -> None:
        self._members = [frozenset(bucket) for bucket in members]
        self._launch = launch
        self.reset()

    def reset(self) -> None:
        """Begin the next step, with nothing ready."""
        self._missing = [set(bucket) for bucket in self._members]
        self._front = 0

    def ready(self, bucket: int, member: Member) -> None:
        """Mark a member ready. RuntimeError if it was ready already."""
        if member not in self._missing[bucket]:
            raise RuntimeError(TWICE)
        self._missing[bucket].remove(member)
        while self._front < len(self._missing) and not self._missing[self._front]:
            self._front += 1
            self._launch(self._front - 1)

    def missing(self) -> list[Member]:
        """The members that are not ready yet."""
        return [member for bucket in self._missing for member in bucket]
