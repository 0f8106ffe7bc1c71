"""What happened in an elastic run, from the events of its ranks and of what ended them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bagua_bench.results.result import Elastic, Interruption, Life

BEGINS, TRAINS = "beginning", "training"
"""Phases of the events of a run's rank 0: a start with other ranks, and a step."""


@dataclass
class _Start:
    ranks: int
    first: int
    last: int
    done: float | None = None
    """When its first step was done."""
    seen: float = 0.0
    """When its last one was."""


@dataclass
class Diary:
    """Takes events as they come; times are seconds of one clock."""

    _starts: list[_Start] = field(default_factory=list)
    _events: list[tuple[str, int]] = field(default_factory=list)
    """What happened, and in which start."""

    @property
    def step(self) -> int:
        """The step that was done last, over all starts; 0 before the first."""
        return max((start.last for start in self._starts), default=0)

    def note(self, event: dict[str, Any]) -> None:
        """An event of rank 0."""
        if event["phase"] == BEGINS:
            self._starts.append(_Start(event["ranks"], event["after"] + 1, event["after"]))
        elif event["phase"] == TRAINS and self._starts:
            start = self._starts[-1]
            start.last, start.seen = event["step"], event["at"]
            start.done = event["at"] if start.done is None else start.done

    def happened(self, what: str) -> None:
        """Something after which the ranks are others."""
        self._events.append((what, len(self._starts) - 1))

    def told(self) -> Elastic:
        """Starts that took no step are left out."""
        alive = [(number, start) for number, start in enumerate(self._starts) if start.done is not None]
        lives = tuple(Life(start.ranks, start.first, start.last) for _, start in alive)
        return Elastic(lives, tuple(self._between(*pair) for pair in pairwise(alive)))

    def _between(self, one: tuple[int, _Start], other: tuple[int, _Start]) -> Interruption:
        (number, before), (later, after) = one, other
        assert after.done is not None
        known = [what for what, start in self._events if number <= start < later]
        repeated = max(0, before.last - after.first + 1)  # another rank may have been further
        return Interruption(", ".join(known) or "a rank failed", before.last, repeated, after.done - before.seen)
