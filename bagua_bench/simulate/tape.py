"""Records what one rank does instead of doing it: stand-ins for the lane, the communicator and the passing of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from algorithms.base import Message, Op
from bagua_bench.comm import CountedComm
from bagua_bench.engine.lanes import Channels
from bagua_bench.machine import program
from bagua_bench.machine.arithmetic import Meter
from bagua_bench.machine.program import Collective, Gate, Item, Phase, Round, Step, Submit, Traffic, Wait, Work
from bagua_bench.simulate import bagua_net

_PACKED = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2, torch.complex64: 4}
"""Types whose sums may travel as 8-bit integers, and the bytes of a float."""


class Tape:
    """The items of the current step; inside `job`, operations go to the job and not to the training thread."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._ops: list[program.Operation] | None = None
        self._deaf = False
        self._seen: list[program.Operation] | None = None

    def add(self, item: Item) -> None:
        """Record what the training thread does; layers between which nothing happens are one piece of work."""
        last = self._items[-1] if self._items else None
        if isinstance(item, Work) and isinstance(last, Work) and item.phase == last.phase:
            self._items[-1] = Work(item.phase, last.share + item.share)
        else:
            self._items.append(item)

    def operation(self, op: program.Operation) -> None:
        """Record a collective or memory traffic, in the job if there is one."""
        if self._seen is not None:
            self._seen.append(op)
        if self._ops is not None:
            self._ops.append(op)
        elif not self._deaf:
            assert isinstance(op, Traffic), "algorithms communicate only in the lane"
            self._items.append(op)

    @contextmanager
    def job(self) -> Iterator[list[program.Operation]]:
        """Collect the operations of a piece of work in the list yielded; consecutive memory traffic is merged."""
        assert self._ops is None, "a job was begun inside another one"
        ops: list[program.Operation] = []
        self._ops = ops
        try:
            yield ops
        finally:
            self._ops = None
            ops[:] = _merged(ops)

    @contextmanager
    def watched(self) -> Iterator[list[program.Operation]]:
        """A context that yields a list of all operations which are recorded in it."""
        seen: list[program.Operation] = []
        self._seen = seen
        try:
            yield seen
        finally:
            self._seen = None

    def meter(self) -> Meter:
        """A context whose arithmetic is recorded."""
        return Meter(lambda nbytes: self.operation(Traffic(nbytes)), values=False)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Ignore operations outside jobs; used before the first step."""
        self._deaf = True
        yield
        self._deaf = False

    def cut(self) -> Step:
        """End the step; return it."""
        step, self._items = tuple(self._items), []
        return step


class TapePace:
    """A pace that records time on the tape instead of letting it pass."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def begin(self, phase: str) -> None:
        self._tape.add(Phase(phase))

    def work(self, phase: str, share: float) -> None:
        self._tape.add(Work(phase, share))

    def carry(self, load: float) -> None:
        pass  # the clock knows the loads of all ranks


class TapeChannels(Channels):
    """Runs work at once and writes down what it would have done; the number of channels matters to the clock alone."""

    def __init__(self, tape: Tape, comm: CountedComm) -> None:
        super().__init__([], [comm])
        self._tape, self._comm = tape, comm
        self._submitted = 0

    def submit(self, key: int, work: Callable[[CountedComm], None]) -> None:
        with self._tape.job() as ops:
            work(self._comm)
        self._tape.add(Submit(tuple(ops), key))
        self._submitted += 1

    def mark(self) -> int:
        return self._submitted

    def wait(self, mark: int | None = None) -> None:
        self._tape.add(Wait(0 if mark is None else self._submitted - mark))

    def run(self, work: Callable[[CountedComm], None]) -> None:
        self.wait()
        self.submit(0, work)
        self.wait()


class TapeLoop:
    """Stands in for the averaging loop: records one round, and where the training thread admits it."""

    def __init__(
        self,
        tape: Tape,
        comm: CountedComm,
        device: torch.device,
        pause: float,
        snapshot: Callable[[], None],
        exchange: Callable[[], None],
        apply: Callable[[], None],
    ) -> None:
        self.mutate: AbstractContextManager[None] = nullcontext()
        self.round: Round | None = None
        self.sent: dict[str, float] = {}
        self._tape, self._comm, self._pause = tape, comm, pause
        self._work = (snapshot, exchange, apply)

    def start(self) -> None:
        if self.round is None:
            sent = self._comm.sent
            snapshot, exchange, apply = self._work
            with self._tape.job() as before:
                self._comm.all_reduce(torch.empty(1, dtype=torch.uint8, device="meta"), Op.MIN)
                snapshot()
            with self._tape.job() as exchanged:
                exchange()
            with self._tape.job() as applied:
                apply()
            self.round = Round(tuple(before), tuple(exchanged), tuple(applied), self._pause)
            self.sent = {key: value - sent[key] for key, value in self._comm.sent.items()}

    def enter(self) -> None:
        self._tape.add(Gate(True))

    def leave(self) -> None:
        self._tape.add(Gate(False))

    def check(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class TapeComm(CountedComm):
    """Records collectives. `rank` stands for all ranks of its kind; tensors stay as they are."""

    def __init__(
        self,
        tape: Tape,
        level: str,
        rank: int,
        size: int,
        *groups: CountedComm | None,
        per_server: int = 1,
        part: tuple[int, int] | None = None,
        wire: str | None = None,
    ) -> None:
        super().__init__(rank, size, *groups)
        self._tape, self._level, self._per_server, self._part, self._wire = tape, level, per_server, part, wire

    @classmethod
    def world(cls, tape: Tape, servers: int, per_server: int, local: int, wire: str | None = None) -> TapeComm:
        """The communicator of the rank `local` of the first server; 0 is its leader. `wire` as `transport.wire`."""
        intra = cls(tape, "intra", local, per_server, wire=wire) if per_server > 1 else None
        inter = cls(tape, "inter", 0, servers, wire=wire) if intra is not None and local == 0 else None
        return cls(tape, "flat", local, servers * per_server, intra, inter, per_server=per_server, wire=wire)

    def count(self, sent: Mapping[str, float]) -> None:
        """Count bytes by level that are sent once more."""
        self._sent += sent["flat"]
        for level, comm in (("intra", self.intra), ("inter", self.inter)):
            if comm is not None:
                comm._sent += sent[level]

    def barrier(self) -> None:
        pass

    def _note(self, kind: str, x: Tensor, offsets: Sequence[int] = ()) -> None:
        self._tape.operation(Collective(kind, x.nbytes, self._level, tuple(offsets), self._part))

    def _all_reduce(self, x: Tensor, op: Op) -> None:
        nbytes = self._reduced_bytes(x, op)
        packs = 0 if nbytes == x.nbytes else x.nbytes
        self._tape.operation(Collective("all_reduce", nbytes, self._level, (), self._part, packs))

    def _reduced_bytes(self, x: Tensor, op: Op) -> int:
        adds = op in (Op.SUM, Op.AVG) and x.dtype in _PACKED
        if not adds or x.numel() < self.size:
            return x.nbytes
        return bagua_net.summed(x.nbytes, _PACKED[x.dtype], self._wire)

    def _reduce(self, x: Tensor, dst: int, op: Op) -> None:
        self._note("reduce", x)

    def _broadcast(self, x: Tensor, src: int) -> None:
        self._note("broadcast", x)

    def _all_to_all(self, x: Tensor, out: Tensor) -> None:
        self._note("all_to_all", x)

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        self._note("all_gather", x)

    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor:
        self._note("reduce_scatter", x)
        return x.new_empty(x.shape[1:])

    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if sends:
            others, sources = [peer for peer, _ in sends], [peer for peer, _ in receives]
            kind = "pairs" if len(others) == 1 and others == sources else "exchange"
            mean = math.ceil(sum(x.nbytes for _, x in sends) / len(sends))
            offsets = tuple(peer - self.rank for peer in others)
            self._tape.operation(Collective(kind, mean, self._level, offsets, self._part))

    def _subgroup(self, ranks: tuple[int, ...]) -> TapeComm:
        if self._level == "flat":
            servers = len({rank // self._per_server for rank in ranks})
        else:
            servers = 1 if self._level == "intra" else len(ranks)
        part = (servers, math.ceil(len(ranks) / servers))
        return self._alike(ranks.index(self.rank), len(ranks), part[1], part)

    def _twin(self, number: int) -> TapeComm:
        return self._alike(self.rank, self.size, self._per_server, self._part)

    def _alike(self, rank: int, size: int, per_server: int, part: tuple[int, int] | None) -> TapeComm:
        return TapeComm(self._tape, self._level, rank, size, per_server=per_server, part=part, wire=self._wire)

    def _lengths(self, x: Tensor) -> list[int]:
        self.all_gather(torch.empty(1, dtype=torch.int64, device="meta"))
        return [len(x)] * self.size


def _merged(ops: list[program.Operation]) -> list[program.Operation]:
    merged: list[program.Operation] = []
    for op in ops:
        if isinstance(op, Traffic) and merged and isinstance(last := merged[-1], Traffic):
            merged[-1] = Traffic(last.nbytes + op.nbytes)
        else:
            merged.append(op)
    return merged
