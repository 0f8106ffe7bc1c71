"""Where the time of a step goes."""

from __future__ import annotations

import time

from bagua_bench.training.phases import PHASES


class StepClock:
    """Splits a step into phases, each from its mark to the next; a phase may be marked several times."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []

    def now(self) -> float:
        """A stamp for `mark(at=...)`."""
        return time.perf_counter()

    def mark(self, phase: str, at: float | None = None) -> None:
        """Begin a phase now, or at an earlier stamp."""
        self._marks.append((phase, self.now() if at is None else at))

    def stop(self) -> dict[str, float]:
        """End the step; return the seconds of every phase and of the whole step (`step`)."""
        self.mark("end")
        seconds = dict.fromkeys(PHASES, 0.0)
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds[phase] += end - begin
        seconds["step"] = self._marks[-1][1] - self._marks[0][1]
        self._marks.clear()
        return seconds
