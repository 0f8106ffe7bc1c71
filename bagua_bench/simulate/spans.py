"""What simulated ranks do when, in the form in which real ones note it (docs/trace.md). No torch import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from bagua_bench.machine.program import Collective, Operation, Traffic
from bagua_bench.results.result import TRAINING, Span, channel_track
from bagua_bench.simulate.lanes import Noted

_KINDS = {"pairs": "exchange"}
"""Collectives that have another name in the communicator."""


def of_step(marks: Sequence[tuple[str, float]], end: float, shift: float = 0.0) -> list[Span]:
    """A step and its phases, from the times at which these begin; `shift` seconds later."""
    within = [
        Span(TRAINING, name, shift + begin, until - begin)
        for (name, begin), (_, until) in pairwise([*marks, ("", end)])
    ]
    return [*within, Span(TRAINING, "step", shift + marks[0][1], end - marks[0][1])]


def of_channels(noted: Iterable[Noted], k: int, shift: float) -> Iterator[Span]:
    """What the channels do for class k, `shift` seconds later."""
    for one in noted:
        yield _span(channel_track(one.channel), one.what, shift + one.begin[k], one.end[k] - one.begin[k])


def _span(track: str, what: Operation | int, begin: float, seconds: float) -> Span:
    if isinstance(what, Collective):
        return Span(track, _KINDS.get(what.kind, what.kind), begin, seconds, what.nbytes, what.level)
    if isinstance(what, Traffic):
        return Span(track, "arithmetic", begin, seconds)
    return Span(track, f"bucket {what}", begin, seconds)
