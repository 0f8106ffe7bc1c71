"""`torch.distributed` backend `bagua_net` for CPU tensors: every operation over all streams of all interfaces."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.transport.joining import joined
from bagua_bench.transport.lane import Lane
from bagua_bench.transport.native import ANY, NAME, Lossy, Piece
from bagua_bench.transport.tensors import (
    Dense,
    Room,
    as_real,
    check_rows,
    checked,
    numbers,
    numbers_of,
    overwrite,
    shares_memory,
)
from bagua_bench.transport.tunable import Tunable
from bagua_bench.transport.work import Job, Message, Together

_ProcessGroup: Any = dist.ProcessGroup  # its stubs know neither its overloads nor its newer names
_Started = TypeVar("_Started", Job, Message)


class BaguaNetGroup(Tunable, _ProcessGroup):  # type: ignore[misc]
    """A process group; collective calls must come in the same order on all its ranks.

    `timeout` is how long a collective operation may go without moving a byte and, as with gloo, how long a message may
    take once somebody waits for it. It is also how long an outage may last, unless BAGUA_NET_TIMEOUT is set.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout.total_seconds()
        self._own_name = ""
        self._room = Room()  # for what is reduced and scattered
        self._batch: list[Job | Message] | None = None  # what was started since a batch began
        self._native = joined(store, rank, size, self._timeout)
        self._lane = Lane(self._native.close, self._native.abort, self._timeout)
        self._end = weakref.finalize(self, self._lane.end)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Job:
        """Reduce each in place, to all."""

        def run() -> None:
            for x in tensors:
                kind = numbers_of(x, opts)
                with Dense(as_real(x)) as data:
                    self._native.all_reduce(data.data_ptr(), data.numel(), *kind, self._limit(opts))

        return self._run(run, tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Job:
        """Reduce in place, to the root."""
        (x,) = tensors

        def run() -> None:
            kind = numbers_of(x, opts)
            with Dense(as_real(x)) as data:
                self._native.reduce(data.data_ptr(), data.numel(), *kind, opts.rootRank, self._limit(opts))

        return self._run(run, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Job:
        """The root's tensor to all."""

        def run() -> None:
            for x in tensors:
                with Dense(x) as data:
                    self._native.broadcast(data.data_ptr(), data.nbytes, opts.rootRank, self._limit(opts))

        return self._run(run, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Job:
        """Every rank's tensor to all, as a list."""

        def run() -> None:
            for out, x in zip(outputs, inputs, strict=True):
                self._gather_all(out, x, opts)

        return self._run(run, outputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Job:
        """Several tensors of every rank to all, as one list for each rank."""

        def run() -> None:
            for number, x in enumerate(inputs):
                self._gather_all([out[number] for out in outputs], x, opts)

        return self._run(run, outputs, opts)

    def _gather_all(self, out: Sequence[Tensor], x: Tensor, opts: Any) -> None:
        check_rows(out, x, self.size())
        dense = [Dense(o, load=False) for o in out]
        overwrite(dense[self.rank()].data, x)
        self._native.all_gather([d.data.data_ptr() for d in dense], x.nbytes, self._limit(opts))
        for d in dense:
            d.store()

    def all_gather_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Job:
        """Every rank's tensor to all, one after the other in `output`."""

        def run() -> None:
            with Dense(output, load=False) as data:
                self._gather_all(data.view(self.size(), -1).unbind(), x.reshape(-1), opts)

        return self._run(run, output, opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Job:
        """Several `all_gather_single`."""
        jobs = [self.all_gather_single(out, x, opts) for out, x in zip(outputs, inputs, strict=True)]
        return self._run(lambda: [job.wait() for job in jobs], outputs, opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Job:
        """Reduce a list of tensors; rank r keeps the r-th."""

        def run() -> None:
            for out, parts in zip(outputs, inputs, strict=True):
                self._reduce_parts(out, parts, opts)

        return self._run(run, outputs, opts)

    def reduce_scatter_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Job:
        """Reduce; rank r keeps the r-th part."""
        return self._run(lambda: self._reduce_parts(output, x.reshape(self.size(), -1).unbind(), opts), output, opts)

    def _reduce_parts(self, output: Tensor, parts: Sequence[Tensor], opts: Any) -> None:
        if len(parts) != self.size():
            raise ValueError(f"{NAME}: {len(parts)} parts to reduce and scatter: allowed: {self.size()}, one per rank")
        kind, shape = numbers_of(parts[0], opts), checked(output).shape
        room = self._room.of(sum(part.nbytes for part in parts))
        copies = room.view(parts[0].dtype).view(len(parts), parts[0].numel())
        for copy, part in zip(copies, parts, strict=True):
            overwrite(copy, checked(part).reshape(-1))
        self._native.reduce_scatter(copies.data_ptr(), as_real(copies)[0].numel(), *kind, self._limit(opts))
        overwrite(output, copies[self.rank()].view(shape))

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Job:
        """Several `reduce_scatter_single`."""
        jobs = [self.reduce_scatter_single(out, x, opts) for out, x in zip(outputs, inputs, strict=True)]
        return self._run(lambda: [job.wait() for job in jobs], outputs, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Job:
        """A tensor to, and one from, every rank."""
        return self._run(lambda: self._move(self._of_ranks(inputs), self._of_ranks(outputs), opts), outputs, opts)

    def all_to_all_single(
        self, output: Tensor, x: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Job:
        """A part to, and one from, every rank; parts are equal unless their rows are given."""

        def parts(x: Tensor, splits: list[int]) -> dict[int, Tensor]:
            return self._of_ranks(x.split(splits) if splits else x.tensor_split(self.size()))

        def run() -> None:
            with Dense(output, load=False) as data:
                self._move(parts(x, input_splits), parts(data, output_splits), opts)

        return self._run(run, output, opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Job:
        """Every rank's tensor to the root."""
        root = opts.rootRank
        out = self._of_ranks(outputs[0]) if self.rank() == root else {}
        return self._run(lambda: self._move({root: inputs[0]}, out, opts), outputs, opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Job:
        """One of the root's tensors to every rank."""
        root = opts.rootRank
        parts = self._of_ranks(inputs[0]) if self.rank() == root else {}
        return self._run(lambda: self._move(parts, {root: outputs[0]}, opts), outputs, opts)

    def _of_ranks(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        if len(tensors) != self.size():
            raise ValueError(f"{NAME}: {len(tensors)} tensors: allowed: {self.size()}, one per rank")
        return dict(enumerate(tensors))

    def _move(self, sends: dict[int, Tensor], receives: dict[int, Tensor], opts: Any) -> None:
        """Send tensors to some ranks and receive tensors from some; what goes to this rank itself is copied."""
        own = self.rank()
        if own in sends and shares_memory(sends[own], receives.values()):  # it would be overwritten meanwhile
            overwrite(receives[own], sends[own])
            sends, receives = ({r: x for r, x in of.items() if r != own} for of in (sends, receives))
        sources = {r: Dense(x).data for r, x in sends.items()}
        targets = {r: Dense(x, load=False) for r, x in receives.items()}
        if own in sources and sources[own].nbytes != targets[own].data.nbytes:
            room = targets[own].data.nbytes
            raise ValueError(f"{NAME}: rank {own} sends itself {sources[own].nbytes} bytes, and has room for {room}")
        pieces = [Piece(r, False, d.data.data_ptr(), d.data.nbytes) for r, d in targets.items()]
        pieces += [Piece(r, True, x.data_ptr(), x.nbytes) for r, x in sources.items()]
        self._native.move(pieces, self._limit(opts))
        for d in targets.values():
            d.store()

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Message:
        """Messages between two ranks arrive in the order in which they were sent; tags must agree."""
        return self._message(dst, True, Dense(tensors[0]).data, tag, lambda: None)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Message:
        """Receive what `send` sends, or less; the rest of the tensor stays as it is."""
        dense = Dense(tensors[0])
        return self._message(src, False, dense.data, tag, dense.store)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Message:
        """Receive the next message with this tag, from whichever rank has sent one; ranks take turns.

        It fails when all other ranks are lost, not when one is.
        """
        return self.recv(tensors, ANY, tag)

    def _message(self, peer: int, sending: bool, data: Tensor, tag: int, finish: Callable[[], None]) -> Message:
        started = self._native.start(Piece(peer, sending, data.data_ptr(), data.nbytes), tag, data)
        return self._started(Message(self._native, started, self._timeout, finish))

    def barrier(self, opts: Any = None) -> Job:
        """Nobody returns before all have called."""
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        kind = numbers(token, "SUM")
        return self._run(lambda: self._native.all_reduce(token.data_ptr(), 1, *kind, self._limit(opts)), [], opts)

    def abort(self) -> None:
        """Make all pending operations fail."""
        self._native.abort()

    def shutdown(self) -> None:
        """Close the connections once all operations that were started have ended, and all waits for messages."""
        self._end()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of operations that start from now on."""
        self._timeout = self._lane.patience = timeout.total_seconds()

    def report(self, peer: int, lane: int = 0) -> list[dict[str, float]]:
        """Counters of the streams to a rank, see cpp/core/report.h; lane 0 is the collectives', 1 the messages'."""
        return self._native.report(peer, lane)

    def reduced_bytes(self, x: Tensor, op: Any) -> int:
        """What a tensor travels as in an all-reduce with an operation."""
        packed = self._native.int8
        return self._native.int8_bytes(as_real(x).numel(), *numbers(x, op.name)) if packed else x.nbytes

    def lossy(self) -> Lossy:
        """All-reduces so far that were lossy, as BAGUA_NET_WIRE=int8 asks."""
        return self._native.lossy()

    def getBackendName(self) -> str:
        """The name under which it is registered."""
        return NAME

    def _get_backend(self, device: torch.device) -> Any:
        """The backend that moves tensors of a device; torch 2.15 asks for it before a batch of messages."""
        return self if device.type == "cpu" else super()._get_backend(device)

    def _set_group_name(self, name: str) -> None:
        self._own_name = name

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._own_name

    def _run(self, call: Callable[[], Any], value: Any, opts: Any) -> Job:
        job = Job(self._lane, call, value)
        self._lane.run(job, getattr(opts, "asyncOp", True))
        return self._started(job)

    def _started(self, work: _Started) -> _Started:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        """Begin a batch, as torch's coalescing manager does for a device; what is in it starts at once."""
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Together:
        """End the batch; what is returned has ended when all of it has."""
        batch, self._batch = self._batch or [], None
        return Together(batch)

    def _limit(self, opts: Any) -> float:
        given = opts.timeout.total_seconds() if opts is not None else 0.0
        return given if given > 0 else self._timeout

    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
