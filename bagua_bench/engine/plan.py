"""How a model is cut into buckets and sent: the size of a bucket, the channels, and the order of the parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Op
from bagua_bench.comm import CountedComm
from bagua_bench.engine import sizing
from bagua_bench.engine.lanes import Channels

_TRIES = 5  # the quickest of them counts: nothing makes a message quicker than it is
_AT_ONCE = 8  # all-reduces whose CPU time is measured together
_LIMIT = 0.2  # seconds that they may take together, unless there are only two

Opener = Callable[[CountedComm, int, torch.device], Channels]


class Plan:
    """What a user asked for, and what was chosen where nothing was asked.

    bucket_size: bytes at which a bucket closes; None: found by `sizing.bucket_size`, at least `least`.
    channels: None: `sizing.channels`.
    shares_cores: whether the model is computed on the cores that communicate, if that is where its tensors are.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        comm: CountedComm,
        bucket_size: int | None,
        channels: int | None,
        least: int,
        opener: Opener,
        shares_cores: bool,
    ) -> None:
        self._algorithm, self._comm, self._least, self._open = algorithm, comm, least, opener
        self._shares_cores = shares_cores
        self._asked, self._asked_channels = bucket_size, channels
        self._own = comm  # that the channels are of
        self._settings = self._wanted = dict(comm.settings)
        self.bucket_size: int | None = None
        """Bytes at which a bucket closes, once it is known; None where the algorithm chooses."""
        self.costs: sizing.Costs | None = None
        """What all-reduces cost, if it was measured."""
        self.order: list[str] = []
        """Names of parameters in the order in which they go into buckets; those that are missing go first."""
        self._channels: Channels | None = None

    def described(self) -> list[str]:
        """What all ranks must have in common."""
        return [f"bucket_size={self._asked}", f"channels={self._asked_channels}"]

    def change(self, bucket_size: int | None, channels: int | None, settings: Mapping[str, int]) -> None:
        """Take other values from the next buckets on; None leaves one as it is. settings: those of the transport."""
        if bucket_size is not None:
            self._asked, self.bucket_size = bucket_size, None
        if channels is not None:
            self._asked_channels = channels
        self._wanted = dict(settings)

    def channels(self, device: torch.device) -> Channels:
        """The channels; collective where they are opened, with nothing under way. ValueError for fewer than one."""
        asked = self._asked_channels
        number = sizing.channels(on_gpu=device.type == "cuda") if asked is None else asked
        if self._wanted != self._settings:
            self.close()
            self._own, self._settings = self._comm.renewed(self._wanted), self._wanted
        if self._channels is None or self._channels.number != number:
            self.close()
            self._channels = self._open(self._own, number, device)
        return self._channels

    @property
    def number(self) -> int:
        """How many channels there are, once they are open."""
        assert self._channels is not None
        return self._channels.number

    def size(self, params: Sequence[Parameter]) -> int:
        """Bytes at which a bucket closes; collective the first time if it has to be measured."""
        if self._algorithm.one_bucket:
            return 2**63  # and `bucket_size` stays None
        if self.bucket_size is None:
            self.bucket_size = self._choose(params) if self._asked is None else self._asked
        return self.bucket_size

    def ordered(self, named: Sequence[tuple[str, Parameter]]) -> list[Parameter]:
        """Parameters in the order in which they go into buckets: as in `order`, or the last registered first."""
        place, backwards = {name: number for number, name in enumerate(self.order)}, list(named)[::-1]
        return [p for _, p in sorted(backwards, key=lambda pair: place.get(pair[0], -1))]

    def close(self) -> None:
        """End the channels."""
        if self._channels is not None:
            self._channels.close()
            self._channels = None

    def _choose(self, params: Sequence[Parameter]) -> int:
        model, device = sum(p.nbytes for p in params), params[0].device
        if self._comm.size == 1 or model <= self._least or device.type == "meta":
            return self._least
        channels = self.channels(device)
        probe = Probe(self._comm, channels, device)
        self.costs = sizing.measure(probe.seconds, channels.number, model)
        if self._shares_cores and device.type == "cpu":
            self.costs = replace(self.costs, occupied=probe.occupied(self.costs.overhead))
        return sizing.bucket_size(model, channels.number, self.costs, self._least, self._algorithm.line_share)


class Probe:
    """Times all-reduces on channels; collective, and every rank finds the same."""

    def __init__(self, comm: CountedComm, channels: Channels, device: torch.device) -> None:
        self._comm, self._channels, self._device = comm, channels, device

    def seconds(self, nbytes: int, number: int) -> float:
        """Time of so many all-reduces of nbytes at once, on the slowest rank; the best of a few tries."""
        messages = [torch.zeros(max(1, nbytes // 4), device=self._device) for _ in range(number)]
        self._slowest([0.0])  # all ranks begin together, and all-reduces keep them together
        first = self._slowest([self._once(messages)])
        return min(first, self._slowest([self._once(messages) for _ in range(_more(first))]))

    def occupied(self, overhead: float) -> float:
        """CPU seconds of one without bytes, which takes `overhead` seconds; the least of a few tries."""
        messages = [torch.zeros(1) for _ in range(_AT_ONCE)]

        def once() -> float:
            began = time.process_time()
            self._once(messages)
            return (time.process_time() - began) / _AT_ONCE

        return self._slowest([once() for _ in range(_more(_AT_ONCE * overhead))])

    def _once(self, messages: Sequence[Tensor]) -> float:
        began = time.perf_counter()
        for key, message in enumerate(messages):
            self._channels.submit(key, partial(_all_reduce, message))
        self._channels.wait()
        self._synchronize()
        return time.perf_counter() - began

    def _slowest(self, seconds: Sequence[float]) -> float:
        """The least of the times, each on the rank where it was longest."""
        found = torch.tensor(seconds, device=self._device)
        self._comm.all_reduce(found, Op.MAX)
        return float(found.min())

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _more(seconds: float) -> int:
    """How many more tries, where one takes so long."""
    return max(1, min(_TRIES - 1, round(_LIMIT / seconds)))


def _all_reduce(message: Tensor, comm: CountedComm) -> None:
    comm.all_reduce(message)
