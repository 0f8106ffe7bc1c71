"""Measures where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from bagua_bench.results.phases import PHASES


def stamp(device: torch.device, reuse: Any = None) -> Any:
    """This moment, for `Stopwatch.mark(at=...)`: of the host, or of the GPU's current stream, without waiting.

    reuse: a stamp that is not needed any more.
    """
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True) if reuse is None else reuse
    event.record()
    return event


def seconds_between(begin: Any, end: Any, device: torch.device) -> float:
    """From one stamp to another; waits until a GPU has reached the second one."""
    if device.type != "cuda":
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


class Stopwatch:
    """Splits a step into phases, each from its mark to the next; a phase may be marked several times.

    On a GPU the phases are those of its stream; `stop` then waits for the step to end.
    note: is told the name and the stamps of every phase, and of the whole as `step`.
    """

    def __init__(self, device: torch.device, note: Callable[[str, Any, Any], None] | None = None) -> None:
        self._device, self._note = device, note
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str, at: Any = None) -> None:
        """Begin a phase now, or at an earlier stamp."""
        self._marks.append((phase, stamp(self._device) if at is None else at))

    def stop(self) -> dict[str, float]:
        """End the step; return the seconds of every phase and of the whole step (`step`)."""
        self.mark("end")
        seconds = dict.fromkeys(PHASES, 0.0)
        for (phase, begin), (_, end) in pairwise(self._marks):
            seconds[phase] += seconds_between(begin, end, self._device)
        seconds["step"] = seconds_between(self._marks[0][1], self._marks[-1][1], self._device)
        if self._note is not None:
            for (phase, begin), (_, end) in pairwise(self._marks):
                self._note(phase, begin, end)
            self._note("step", self._marks[0][1], self._marks[-1][1])
        self._marks.clear()
        return seconds
