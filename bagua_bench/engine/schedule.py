"""Decides when each part of an algorithm's communication is launched, and when it lands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Bucket, Moment, Piece, Turn, When
from bagua_bench.comm import CountedComm
from bagua_bench.engine.buffers import Buffers
from bagua_bench.engine.lanes import Channels
from bagua_bench.engine.order import InOrder
from bagua_bench.engine.rounds import Rounds

Perform = Callable[..., None]


def perform(piece: Callable[..., None], bucket: Bucket, *rest: object) -> None:
    """Call a piece of an algorithm: `prepare`, `communicate` or `finish`, or a turn's own."""
    piece(bucket, *rest)


@dataclass
class _Flight:
    """A turn that was launched and has not landed."""

    turn: Turn
    number: int
    """Among the turns of its step."""
    step: int
    carries_buffers: bool
    mark: Any = None
    """The channels' mark behind all of its work; None: the work is done."""


class Schedule:
    """The communication of one step: `begin`, then for every moment `ready` or `launch_all`, and `land`.

    A turn that lands in a later step is in flight until then. Buffers travel with the first turn of a step, unless
    they are under way already.

    overlap: launch as soon as possible; off: in `land`.
    clips: gradients are clipped after the backward pass, so that an algorithm that uses them up has to wait for it.
    unscale: called on the gradients of a bucket before they are communicated.
    perform: calls a piece of the algorithm with a bucket and whatever else it needs.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        comm: CountedComm,
        channels: Channels,
        buckets: Sequence[Bucket],
        buffers: Buffers | None,
        *,
        overlap: bool,
        clips: bool,
        unscale: Callable[[Sequence[Tensor]], None],
        perform: Perform,
    ) -> None:
        self._algorithm, self._comm, self._channels = algorithm, comm, channels
        self._buckets, self._buffers = buckets, buffers
        self._overlap, self._clips, self._unscale = overlap, clips, unscale
        self._perform = perform
        self._flights: list[_Flight] = []
        self.rounds = Rounds()
        """Averaging rounds that were applied."""
        self._order: InOrder[Parameter] = InOrder([bucket.params for bucket in buckets], self._backward)

    def begin(self, step: int) -> None:
        """Get ready for step `step`: nothing of it is launched."""
        self.step = step
        self._turns = list(enumerate(self._algorithm.turns(step)))
        self.moments = {turn.when for _, turn in self._turns}
        """The moments in which something of this step is launched."""
        if When.ASYNC in self.moments and len(self._turns) > 1:
            raise ValueError(f"{type(self._algorithm).__name__}.turns({step}): a step with an ASYNC turn has no other")
        self.reads_weights = any(turn.when is When.FORWARD and not turn.land for _, turn in self._turns)
        """Whether weights have to stay as they are between forward and `step()`."""
        self.consumes = When.BACKWARD in self.moments and self._algorithm.consumes_gradients(step)
        self._waits = not self._overlap or (self._clips and self.consumes)
        self._launched: dict[int, _Flight] = {}
        self._held: list[Callable[[], None]] = []
        self._order.reset()

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Step and number of every turn in flight; its communication is done once the channels were `drain`ed."""
        return [(flight.step, flight.number) for flight in self._flights]

    def resume(self, pending: Sequence[tuple[int, int]]) -> None:
        """Put turns in flight that were `pending`; their communication is done."""
        found = [(step, number, self._algorithm.turns(step)[number]) for step, number in pending]
        self._flights = [_Flight(turn, number, step, carries_buffers=False) for step, number, turn in found]

    def has_launched(self, when: When) -> bool:
        """Whether anything of this step has been launched at this moment."""
        return any(flight.turn.when is when for flight in self._launched.values())

    def ready(self, index: int, p: Parameter) -> None:
        """The gradient of p, in bucket `index`, is complete."""
        self._open(When.BACKWARD)
        self._order.ready(index, p)

    def missing(self) -> list[Parameter]:
        """Parameters whose gradients are not ready."""
        return self._order.missing()

    def launch_all(self, when: When) -> None:
        """Launch all that belongs to a moment other than BACKWARD, unless that has been done."""
        if not self.has_launched(when):
            self._open(when)
            for index in range(len(self._buckets)):
                self._launch(index, when)

    def land(self, when: When) -> None:
        """Launch the work held back, wait for the turns that land at this moment, finish them. Raises their errors."""
        for work in self._held:
            work()
        self._held = []
        for flight in [f for f in self._launched.values() if f.turn.when is when]:
            flight.mark = self._channels.mark()
            if not self._overlap:
                self._wait(flight)
            self._flights.append(flight)
        due = [f for f in self._flights if f.turn.when is when and f.step + f.turn.land <= self.step]
        for flight in due:
            self._wait(flight)
            self._finish(flight)
            self._flights.remove(flight)

    def run(self, work: Callable[[CountedComm], None]) -> None:
        """Do something collective behind the work launched so far, and wait for it."""
        self._channels.run(work)

    def look(self) -> None:
        """Look the buffers up again: the model may have other ones."""
        if self._buffers is not None:
            self._buffers.look()

    def drain(self) -> None:
        """Wait for all work launched; turns that have yet to land stay in flight, and of this step nothing does."""
        if self._launched or self._flights:
            self._channels.wait()
        for flight in self._flights:
            flight.mark = None

    def forget(self) -> None:
        """Drop all turns in flight."""
        self._flights = []

    # -- averaging rounds --------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Begin a round: copy the weights and buffers that it averages."""
        self.rounds.begin(self.step)
        for bucket in self._buckets:
            self._perform(self._algorithm.prepare, bucket, self.step)
        if self._buffers:
            self._buffers.take()

    def exchange(self) -> None:
        """The communication of a round."""
        for bucket in self._buckets:
            self._perform(self._algorithm.communicate, bucket, self._comm, self.step)
        if self._buffers:
            self._buffers.communicate(self._comm)

    def apply(self) -> None:
        """End a round: bring its result into weights and buffers."""
        for bucket in self._buckets:
            self._perform(self._algorithm.finish, bucket, self.step)
        if self._buffers:
            self._buffers.put()
        self.rounds.end(self.step)

    # -- one piece ---------------------------------------------------------------------------------------------

    def _open(self, when: When) -> None:
        """Buffers go first: they are complete when the backward pass begins, and small."""
        if self.has_launched(when):
            return
        under_way = any(f.carries_buffers for f in [*self._flights, *self._launched.values()])
        for number, turn in self._turns:
            if turn.when is when:
                self._refuse_second(turn)
                with_buffers = bool(self._buffers) and not under_way
                self._launched[number] = _Flight(turn, number, self.step, with_buffers)
                if with_buffers and self._buffers:
                    self._buffers.take()
                    self._submit(partial(self._channels.submit, 0, self._buffers.communicate))
                under_way = True

    def _refuse_second(self, turn: Turn) -> None:
        """ValueError for a bucket that is sent again before it has landed: its data would be overwritten."""
        for flight in self._flights:
            for index in range(len(self._buckets)):
                if flight.turn.when is turn.when and _includes(flight.turn, index) and _includes(turn, index):
                    raise ValueError(
                        f"{type(self._algorithm).__name__}.turns({self.step}): bucket {index} is on its way since step "
                        f"{flight.step} and lands in step {flight.step + flight.turn.land}; it can be sent after that"
                    )

    def _backward(self, index: int) -> None:
        self._launch(index, When.BACKWARD)

    def _launch(self, index: int, when: When) -> None:
        for flight in self._launched.values():
            if flight.turn.when is when and _includes(flight.turn, index):
                self._submit(partial(self._send, flight.turn, index, self.step))

    def _submit(self, work: Callable[[], None]) -> None:
        if self._waits:
            self._held.append(work)
        else:
            work()

    def _send(self, turn: Turn, index: int, step: int) -> None:
        """A bucket always goes through the same channel, where its turns cannot overtake each other."""
        prepare, communicate, _ = self._pieces(turn)
        bucket = self._buckets[index]
        if turn.when is When.BACKWARD:
            self._unscale([bucket.grad])
        self._perform(prepare, bucket, step)
        self._channels.submit(index, partial(self._communicate, communicate, bucket, step))

    def _communicate(self, communicate: Piece, bucket: Bucket, step: int, comm: CountedComm) -> None:
        self._perform(communicate, bucket, comm, step)

    def _wait(self, flight: _Flight) -> None:
        if flight.mark is not None:
            self._channels.wait(flight.mark)
            flight.mark = None

    def _finish(self, flight: _Flight) -> None:
        *_, finish = self._pieces(flight.turn)
        for index, bucket in enumerate(self._buckets):
            if _includes(flight.turn, index):
                self._perform(finish, bucket, flight.step)
        if flight.carries_buffers and self._buffers:
            self._buffers.put()

    def _pieces(self, turn: Turn) -> tuple[Moment, Piece, Moment]:
        if turn.communicate is None:
            return self._algorithm.prepare, self._algorithm.communicate, self._algorithm.finish
        return turn.prepare or _nothing, turn.communicate, turn.finish or _nothing


def _includes(turn: Turn, index: int) -> bool:
    return turn.buckets is None or index in turn.buckets


def _nothing(bucket: Bucket, step: int) -> None:
    pass
