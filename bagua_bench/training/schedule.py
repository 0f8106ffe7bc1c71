"""What of an algorithm's communication is launched when: one step after another, and averaging rounds beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Bucket, When
from bagua_bench.comm import CountedComm
from bagua_bench.training.buffers import Buffers
from bagua_bench.training.lanes import Lane
from bagua_bench.training.order import InOrder


class Schedule:
    """The communication of one step: `begin`, then `ready` or `launch_all` in the algorithm's moment, then `land`.

    overlap: launch as soon as possible; off: in `land`.
    clips: gradients are clipped after the backward pass, so that an algorithm that uses them up has to wait for it.
    unscale: called on the gradients of a bucket before they are communicated.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        comm: CountedComm,
        lane: Lane,
        buckets: Sequence[Bucket],
        buffers: Buffers | None,
        *,
        overlap: bool,
        clips: bool,
        unscale: Callable[[Sequence[Tensor]], None],
    ) -> None:
        self._algorithm, self._comm, self._lane = algorithm, comm, lane
        self._buckets, self._buffers = buckets, buffers
        self._overlap, self._clips, self._unscale = overlap, clips, unscale
        self.launched = False
        """Whether anything of this step has been."""
        self._order: InOrder[Parameter] = InOrder([bucket.params for bucket in buckets], self._launch)

    def begin(self, step: int) -> None:
        """Be before step `step`, with nothing launched."""
        self.step = step
        self.when = self._algorithm.moment(step)
        self.consumes = self.when is When.BACKWARD and self._algorithm.consumes_gradients(step)
        self.launched = False
        self.talks = self._algorithm.communicates(step)
        self._waits = not self._overlap or (self._clips and self.consumes)
        self._held: list[Callable[[], None]] = []
        self._order.reset()

    def ready(self, index: int, p: Parameter) -> None:
        """The gradient of p, in bucket `index`, is complete."""
        self._open()
        self._order.ready(index, p)

    def missing(self) -> list[Parameter]:
        """Parameters whose gradients are not ready."""
        return self._order.missing()

    def launch_all(self) -> None:
        """Launch all buckets, unless that has been done."""
        if not self.launched:
            self._open()
            for index in range(len(self._buckets)):
                self._launch(index)

    def land(self) -> None:
        """Launch what was held back, wait for everything, and publish it. Raises what failed."""
        for work in self._held:
            self._lane.submit(work)
        self._held = []
        self._lane.wait()
        if self.launched and self.talks:
            for bucket in self._buckets:
                self._algorithm.finish(bucket, self.step)
            if self._buffers:
                self._buffers.put()

    def run(self, work: Callable[[], None]) -> None:
        """Do something collective behind what was launched, and wait for it."""
        self._lane.submit(work)
        self._lane.wait()

    def look(self) -> None:
        """The model may have other buffers."""
        if self._buffers is not None:
            self._buffers.look()

    def drain(self) -> None:
        """Wait for what was launched and forget it."""
        if self.launched:
            self._lane.wait()

    # -- averaging rounds --------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Begin a round: take from weights and buffers what it averages."""
        for bucket in self._buckets:
            self._algorithm.prepare(bucket, self.step)
        if self._buffers:
            self._buffers.take()

    def exchange(self) -> None:
        """The communication of a round."""
        for bucket in self._buckets:
            self._algorithm.communicate(bucket, self._comm, self.step)
        if self._buffers:
            self._buffers.communicate(self._comm)

    def apply(self) -> None:
        """End a round: bring its result into weights and buffers."""
        for bucket in self._buckets:
            self._algorithm.finish(bucket, self.step)
        if self._buffers:
            self._buffers.put()

    # -- one piece ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Buffers go first: they are complete when the backward pass begins, and small."""
        if self.launched:
            return
        self.launched = True
        if self._buffers and self.talks:
            self._buffers.take()
            self._submit(partial(self._buffers.communicate, self._comm))

    def _launch(self, index: int) -> None:
        if self.talks:
            self._submit(partial(self._communicate, self._buckets[index], self.step))

    def _submit(self, work: Callable[[], None]) -> None:
        if self._waits:
            self._held.append(work)
        else:
            self._lane.submit(work)

    def _communicate(self, bucket: Bucket, step: int) -> None:
        if self.when is When.BACKWARD:
            self._unscale([bucket.grad])
        self._algorithm.prepare(bucket, step)
        self._algorithm.communicate(bucket, self._comm, step)
