"""Step times by phase, as the virtual clock finds them. No torch import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bagua_bench.results.phases import PHASES
from bagua_bench.results.result import Span


@dataclass
class Timing:
    """Per step, the seconds of every phase and of the whole (`step`), for each class of ranks."""

    steps: list[list[dict[str, float]]] = field(default_factory=list)
    rounds: int = 0
    round_seconds: float = 0.0
    staleness: float = 0.0
    """Mean number of steps between a snapshot and its application, for an algorithm that runs ASYNC."""
    spans: list[list[Span]] = field(default_factory=list)
    """For each class, what it did when, if that was asked for."""


def averaged(timings: Sequence[Timing]) -> Timing:
    """The mean of timings of the same steps and classes, none of them ASYNC; the spans are the first one's."""
    steps = [
        [{name: fmean(one[name] for one in phases) for name in phases[0]} for phases in zip(*classes, strict=True)]
        for classes in zip(*(timing.steps for timing in timings), strict=True)
    ]
    return Timing(steps, spans=timings[0].spans)


def split(marks: list[tuple[str, float]], end: float, begin: float = 0.0) -> dict[str, float]:
    """Seconds of every phase, and of the step, from the times at which phases began."""
    phases = dict.fromkeys(PHASES, 0.0)
    for (name, since), (_, until) in zip(marks, [*marks[1:], ("", end)], strict=True):
        phases[name] += until - since
    return {**phases, "step": end - begin}
