"""The virtual clock for algorithms that run ASYNC: training goes on while averaging rounds come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bagua_bench.machine.program import Collective, Gate, Operation, Phase, Program, Round, Step, Traffic, Wait, Work
from bagua_bench.results.result import AVERAGING, Span
from bagua_bench.simulate.spans import of_step
from bagua_bench.simulate.timing import Timing, split

if TYPE_CHECKING:
    from bagua_bench.simulate.clock import Clock


def run_asynchronous(clock: Clock, program: Program) -> Timing:
    """The time of every step, and the staleness of the averages that are applied.

    All ranks meet in a round's negotiation and exchange; a rank applies the result between two of its steps. A round
    in progress slows down the computing of a step.
    """
    assert program.round is not None
    rounds, timing = _Rounds(clock, program.round), Timing(spans=[[] for _ in clock.classes])
    now = [0.0 for _ in clock.classes]
    for number, step in enumerate(program.steps):
        clock.enter(number)
        spent = []
        for k in clock.classes:
            end, marks = _step(clock, rounds, step, k, now[k])
            spent.append(split(marks, end, now[k]))
            now[k] = end
            if clock.notes:
                timing.spans[k] += of_step(marks, end)
        timing.steps.append(spent)
    if clock.notes:
        for k in clock.classes:
            timing.spans[k] += rounds.spans(k, now[k])
    finished = [r for r in rounds.done if r.applied[0] is not None]
    timing.rounds = len(finished)
    if finished:
        mean_step = now[0] / len(program.steps)
        timing.round_seconds = rounds.period(finished)
        ages = [applied - r.snapshot for r in finished for applied in r.applied if applied is not None]
        timing.staleness = sum(ages) / len(ages) / mean_step
    return timing


class _Flight:
    """One round: when its snapshot was taken, when its result is available, and when each class applied it."""

    def __init__(self, begin: float, snapshot: float, end: float, classes: int) -> None:
        self.begin, self.snapshot, self.end = begin, snapshot, end
        self.applied: list[float | None] = [None] * classes


class _Rounds:
    """Rounds one after another; the next one begins `pause` after every class has applied the last."""

    def __init__(self, clock: Clock, round_: Round) -> None:
        self._round, self._classes = round_, len(clock.classes)
        self._before, self._exchange = _total(clock, round_.before), _total(clock, round_.exchange)
        self.apply = [sum(clock.duration(op, k) for op in round_.apply) for k in clock.classes]
        self.done: list[_Flight] = []
        self._launch(0.0)

    def period(self, finished: Sequence[_Flight]) -> float:
        """Mean time between the beginnings of rounds, seconds."""
        if len(finished) < 2:
            return finished[0].end - finished[0].begin + self._round.pause
        return (finished[-1].begin - finished[0].begin) / (len(finished) - 1)

    def gate(self, k: int, now: float) -> float:
        """Apply a waiting result to class k, which is between two steps; return the time at which it may go on."""
        flight = self.done[-1]
        if flight.applied[k] is None and flight.end <= now:
            now += self.apply[k]
            flight.applied[k] = now
            if None not in flight.applied:
                self._launch(max(at for at in flight.applied if at is not None) + self._round.pause)
        return now

    def spans(self, k: int, until: float) -> Iterator[Span]:
        """What rounds that began before `until` did when, for class k."""
        for flight in self.done:
            if flight.begin < until:
                yield Span(AVERAGING, "snapshot", flight.begin, flight.snapshot - flight.begin)
                yield Span(AVERAGING, "exchange", flight.snapshot, flight.end - flight.snapshot)
            if (applied := flight.applied[k]) is not None:
                yield Span(AVERAGING, "apply", applied - self.apply[k], self.apply[k])

    def _launch(self, begin: float) -> None:
        snapshot = begin + self._before
        self.done.append(_Flight(begin, snapshot, snapshot + self._exchange, self._classes))


def _step(clock: Clock, rounds: _Rounds, step: Step, k: int, now: float) -> tuple[float, list[tuple[str, float]]]:
    marks: list[tuple[str, float]] = []
    for item in step:
        if isinstance(item, Phase):
            marks.append((item.name, now))
        elif isinstance(item, Gate):
            now = rounds.gate(k, now)
        elif isinstance(item, Work):
            now += clock.work(item, k)
        elif isinstance(item, Traffic):
            now += clock.duration(item, k)
        else:
            assert isinstance(item, Wait), "an algorithm that runs ASYNC sends nothing in its steps"
    return now, marks


def _total(clock: Clock, ops: Sequence[Operation]) -> float:
    """Seconds of operations that all classes go through together."""
    return sum(
        clock.duration(op, 0) if isinstance(op, Collective) else max(clock.duration(op, k) for k in clock.classes)
        for op in ops
    )
