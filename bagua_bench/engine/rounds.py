"""Counts averaging rounds: how often they come, and how old their results are when applied."""

from __future__ import annotations

import time

from bagua_bench.results.result import Averaging


class Rounds:
    """Counts rounds that were applied since `reset`, in the order snapshot, apply, snapshot, ..."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from here; a round that is under way counts when it is applied."""
        self.applied = 0
        self._ages = 0
        self._first: float | None = None
        self._last = 0.0

    def begin(self, step: int) -> None:
        """A round took its snapshot in this step."""
        self._began = step

    def end(self, step: int) -> None:
        """Its result was applied in this step."""
        self.applied += 1
        self._ages += step - self._began
        self._last = time.perf_counter()
        self._first = self._last if self._first is None else self._first

    def summary(self) -> Averaging:
        """Rounds applied, mean seconds from one to the next, and mean steps from a snapshot to its application."""
        seconds = None if self._first is None or self.applied < 2 else (self._last - self._first) / (self.applied - 1)
        return Averaging(self.applied, seconds, self._ages / self.applied if self.applied else None)
