"""The virtual clock: how long the steps of a program take on a cluster. No torch import.

Ranks with the same factor on their computing time form a class. The classes go through the program side by side and
meet in every collective, so a synchronous algorithm goes as fast as its slowest rank. That is exact where a collective
joins all ranks, and the steady state where ranks meet in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bagua_bench.machine.compute import Compute
from bagua_bench.machine.program import (
    Collective,
    Fusion,
    Item,
    Operation,
    Phase,
    Program,
    Ready,
    Step,
    Submit,
    Traffic,
    Wait,
    Work,
)
from bagua_bench.results.result import Span
from bagua_bench.simulate.asynchronous import run_asynchronous
from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.costs import seconds, wire, without_hops
from bagua_bench.simulate.lanes import Lanes, Left, Noted
from bagua_bench.simulate.spans import of_channels, of_step
from bagua_bench.simulate.timing import Timing, averaged, split

_PHASES = 8
"""Steps begin at any time of a fusion cycle; the mean over so many evenly spaced ones is taken."""


class Clock:
    """Runs programs on a cluster. `factors` multiply the computing time, one per class of ranks.

    loads: of every step, what multiplies the time of each class's passes in that step alone.
    note: keep what each class does when.
    """

    def __init__(
        self,
        cluster: Cluster,
        compute: Compute,
        factors: Sequence[float] = (1.0,),
        loads: Sequence[Sequence[float]] | None = None,
        note: bool = False,
    ) -> None:
        self.notes = note
        self.classes = range(len(factors))
        """Numbers of the classes."""
        self._cluster, self._compute, self._factors = cluster, compute, list(factors)
        self._loads, self._load = loads, [1.0 for _ in factors]
        self._durations: dict[Operation, float] = {}
        self._own_bytes: dict[Collective, float] = {}
        self._line, self._wire = without_hops(cluster), wire(cluster)
        self._passes = {"forward": compute.forward, "backward": compute.backward, "optimizer": compute.optimizer}

    def run(self, program: Program) -> Timing:
        """The time of every step."""
        if program.round is not None:
            return run_asynchronous(self, program)
        if program.fusion is None:
            return self._run(program)
        return averaged([self._run(program, (k + 0.5) / _PHASES) for k in range(_PHASES)])

    def _run(self, program: Program, phase: float = 0.0) -> Timing:
        """The time of every step, which begins when this share of a fusion cycle has yet to pass."""
        timing = Timing(spans=[[] for _ in self.classes])
        begin = 0.0
        left: list[Left] = []
        for number, step in enumerate(program.steps):
            alike = self._loads is None or (number and self._loads[number] == self._loads[number - 1])
            if number and step == program.steps[number - 1] and not left and alike and not self.notes:
                timing.steps.append(timing.steps[-1])  # both begin and end with an empty lane
                continue
            self.enter(number)
            lanes = int(self._cluster.physics.lanes) if program.asynchronous else 1
            run = _Run(self, program, lanes, left, phase)
            timing.steps.append(run.take(step))
            left = run.left()
            if self.notes:
                for k in self.classes:
                    timing.spans[k] += run.spans(k, begin)
                begin += max(one["step"] for one in timing.steps[-1])
        return timing

    def enter(self, step: int) -> None:
        """Have computing take as long as in this step."""
        if self._loads is not None:
            self._load = [*self._loads[step]]

    def work(self, item: Work, k: int) -> float:
        """Seconds of a piece of computing on class k."""
        load = 1.0 if item.phase == "optimizer" else self._load[k]
        return self._passes[item.phase] * item.share * self._factors[k] * load

    def duration(self, op: Operation, k: int) -> float:
        """Seconds of an operation in the lane, on class k."""
        if isinstance(op, Traffic):
            return op.nbytes / self._compute.memory_bandwidth * self._factors[k]
        found = self._durations.get(op)
        if found is None:
            found = self._durations[op] = seconds(op, self._cluster)
        return found

    def on_the_line(self, op: Collective) -> float:
        """Seconds for which a collective has the line to itself: its transfer, without its latencies.

        Waiting for a TCP window is included, because lanes share the connections.
        """
        return seconds(op, self._line)

    def own_bytes(self, op: Collective) -> float:
        """Seconds that the bytes of a collective take on the line, where every channel has its own connections."""
        found = self._own_bytes.get(op)
        if found is None:
            found = self._own_bytes[op] = seconds(replace(op, packs=0), self._wire)
        return found

    def carried_over(self, exposed: float, k: int) -> float:
        """Seconds of the communication after the optimizer step that the next step hides, on class k."""
        hideable = (self._compute.forward + self._compute.backward) * self._factors[k]
        return min(self._cluster.physics.carry_over * exposed, hideable)

    def negotiation(self) -> float:
        """Seconds for Horovod's workers to agree on what is ready: ceil(log2 n) hops.

        That is one all-reduce of a bit per tensor by recursive doubling, once the tensors are in its response cache.
        """
        servers = self._cluster.layout.servers
        return (servers - 1).bit_length() * self._cluster.reach if servers > 1 else 0.0


class _Run:
    """One step: where every class's training thread is, and when its lane will be empty."""

    def __init__(self, clock: Clock, program: Program, lanes: int, left: Sequence[Left], phase: float) -> None:
        self._clock, self._fusion = clock, program.fusion
        self._ends = [0.0] * lanes  # when each of the transport's lanes is free, if there are several
        self._line = 0.0
        self._now = [0.0 for _ in clock.classes]
        self._lanes = Lanes(left, program.channels, len(clock.classes), clock.duration, clock.own_bytes, clock.notes)
        self._shared: list[Noted] = []
        self._in_buckets = program.buckets > 0
        self._marks: list[list[tuple[str, float]]] = [[] for _ in clock.classes]
        self._pending: list[tuple[float, int]] = []
        self._tick = 0.0 if self._fusion is None else (phase - 1) * self._period(self._fusion)
        self._updated = False

    def take(self, step: Step) -> list[dict[str, float]]:
        for item in step:
            self._item(item)
        return [split(marks, now) for marks, now in zip(self._marks, self._now, strict=True)]

    def spans(self, k: int, begin: float) -> list[Span]:
        """What class k does when in this step, which begins then."""
        noted = [one for one in self._lanes.noted() if self._in_buckets or not isinstance(one.what, int)]
        return [*of_step(self._marks[k], self._now[k], begin), *of_channels([*noted, *self._shared], k, begin)]

    def left(self) -> list[Left]:
        """For every piece of work not waited for: how long after the end of the step each class is done with it."""
        return self._lanes.left(self._now)

    def _item(self, item: Item) -> None:
        if isinstance(item, Work):
            self._updated |= item.phase == "optimizer"
            for k in self._clock.classes:
                self._now[k] += self._clock.work(item, k)
        elif isinstance(item, Submit):
            self._send(item.ops, self._now, item.key)
        elif isinstance(item, Ready):
            self._pending.append((max(self._now), item.nbytes))
            self._fuse(max(self._now))
        elif isinstance(item, Wait):
            if self._pending:
                self._fuse(None)
            shared = max(self._ends)
            ends = [max(end, shared) for end in self._lanes.wait(item.behind)]
            for k in self._clock.classes:
                exposed = max(0.0, ends[k] - self._now[k])
                self._now[k] += exposed - (self._clock.carried_over(exposed, k) if self._updated else 0.0)
        elif isinstance(item, Traffic):
            for k in self._clock.classes:
                self._now[k] += self._clock.duration(item, k)
        elif isinstance(item, Phase):
            for marks, now in zip(self._marks, self._now, strict=True):
                marks.append((item.name, now))

    def _period(self, fusion: Fusion) -> float:
        """Seconds from one tick to the next while nothing is sent."""
        return max(fusion.cycle, self._clock.negotiation())

    def _send(self, ops: Sequence[Operation], ready: Sequence[float], key: int = 0) -> None:
        """Run operations in the lane of a channel; all classes meet in a collective."""
        if len(self._ends) > 1:
            self._share(ops, max(ready))
        else:
            self._lanes.submit(ops, key, ready)

    def _share(self, ops: Sequence[Operation], ready: float) -> None:
        """Run operations, one after the other, in the transport's lane that is free first.

        Latencies of several lanes pass side by side; bytes share one line.
        """
        first = self._ends.index(min(self._ends))
        end = max(ready, self._ends[first])
        for op in ops:
            begin, end = end, end + max(self._clock.duration(op, k) for k in self._clock.classes)
            if isinstance(op, Collective):
                self._line = max(begin, self._line) + self._clock.on_the_line(op)
                end = max(end, self._line)
            if self._clock.notes:
                classes = len(self._now)
                self._shared.append(Noted(first, op, [begin] * classes, [end] * classes))
        self._ends[first] = end

    def _fuse(self, until: float | None) -> None:
        """Horovod: at every tick up to `until` (None: until all is sent) send ready gradients, fused.

        There is only one fusion buffer, so the next tick waits until the lane has sent its contents.
        """
        assert self._fusion is not None
        period = self._period(self._fusion)
        while self._pending:
            first = min(at for at, _ in self._pending) if not period else 0.0
            tick = max(self._tick + period, first, *(self._lanes.end(k) for k in self._clock.classes))
            if until is not None and tick > until:
                return
            self._tick = tick
            ready = [nbytes for at, nbytes in self._pending if at <= self._tick]
            self._pending = self._pending[len(ready) :]
            message = 0
            for nbytes in ready:
                if message and message + nbytes > self._fusion.threshold:
                    self._send([Collective("all_reduce", message, "flat")], [self._tick] * len(self._now))
                    message = 0
                message += nbytes
            if message:
                self._send([Collective("all_reduce", message, "flat")], [self._tick] * len(self._now))
        if period and until is not None and not self._pending:
            self._tick = max(self._tick, until - until % period)
