"""The in-order scheduler: buckets become ready in any order and are launched in theirs (spec: algorithms 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence


class InOrder:
    """Launches bucket 0, 1, ... of a step, each once all its members are ready and the one before was launched.

    All ranks launch in the same order, whatever the order of readiness: collectives cannot deadlock.
    """

    def __init__(self, members: Sequence[Iterable[Hashable]], launch: Callable[[int], None]) -> None:
        self._members = [frozenset(bucket) for bucket in members]
        self._launch = launch
        self.reset()

    def reset(self) -> None:
        """Begin the next step: nothing is ready."""
        self._missing = [set(bucket) for bucket in self._members]
        self._front = 0

    def ready(self, bucket: int, member: Hashable) -> None:
        """Mark a member ready. RuntimeError if it was ready already."""
        if member not in self._missing[bucket]:
            raise RuntimeError("a gradient was produced twice in one step: wrap all but the last backward in no_sync()")
        self._missing[bucket].remove(member)
        while self._front < len(self._missing) and not self._missing[self._front]:
            self._front += 1
            self._launch(self._front - 1)

    def missing(self) -> list[tuple[int, Hashable]]:
        """What is not ready yet, as (bucket, member)."""
        return [(index, member) for index, bucket in enumerate(self._missing) for member in bucket]
