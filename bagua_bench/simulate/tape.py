"""Records what one rank does instead of doing it: stand-ins for the lane, the communicator and the passing of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.base import Op
from bagua_bench.comm import CountedComm
from bagua_bench.simulate import program
from bagua_bench.simulate.program import Collective, Gate, Item, Phase, Round, Step, Submit, Traffic, Wait, Work


class Tape:
    """The items of the step under way; inside `job` operations go to the job and not to the training thread."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._ops: list[program.Op] | None = None
        self._deaf = False

    def add(self, item: Item) -> None:
        """Note what the training thread does."""
        self._items.append(item)

    def operation(self, op: program.Op) -> None:
        """Note a collective or memory traffic where it happens."""
        if self._ops is not None:
            self._ops.append(op)
        elif not self._deaf:
            assert isinstance(op, Traffic), "algorithms communicate in the lane only"
            self._items.append(op)

    @contextmanager
    def job(self) -> Iterator[list[program.Op]]:
        """Gather the operations of a piece of work in the list yielded; memory traffic in a row is one operation."""
        assert self._ops is None, "the lane is asked to wait from within"
        ops: list[program.Op] = []
        self._ops = ops
        try:
            with Meter(self):
                yield ops
        finally:
            self._ops = None
            ops[:] = _merged(ops)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Pass over what happens outside jobs: before the first step."""
        self._deaf = True
        yield
        self._deaf = False

    def cut(self) -> Step:
        """End the step; return it."""
        step, self._items = tuple(self._items), []
        return step


class TapePace:
    """Time passes on the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def begin(self, phase: str) -> None:
        self._tape.add(Phase(phase))

    def work(self, phase: str, share: float) -> None:
        self._tape.add(Work(phase, share))


class TapeLane:
    """Runs work at once and writes down what it would have done."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def submit(self, work: Callable[[], None]) -> None:
        with self._tape.job() as ops:
            work()
        self._tape.add(Submit(tuple(ops)))

    def wait(self) -> None:
        self._tape.add(Wait())

    def close(self) -> None:
        pass


class TapeLoop:
    """Stands in for the averaging loop: one round is written down, and where the training thread lets it in."""

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
    """Writes collectives down. `rank` stands for all ranks of its kind; tensors stay as they are."""

    def __init__(self, tape: Tape, level: str, rank: int, size: int, *groups: CountedComm | None) -> None:
        super().__init__(rank, size, *groups)
        self._tape, self._level = tape, level

    @classmethod
    def world(cls, tape: Tape, servers: int, per_server: int, local: int) -> TapeComm:
        """The communicator of the rank `local` of the first server; 0 is its leader."""
        intra = cls(tape, "intra", local, per_server) if per_server > 1 else None
        inter = cls(tape, "inter", 0, servers) if intra is not None and local == 0 else None
        return cls(tape, "flat", local, servers * per_server, intra, inter)

    def barrier(self) -> None:
        pass

    def _note(self, kind: str, x: Tensor, offsets: Sequence[int] = ()) -> None:
        self._tape.operation(Collective(kind, x.nbytes, self._level, tuple(offsets)))

    def _all_reduce(self, x: Tensor, op: Op) -> None:
        self._note("all_reduce", x)

    def _reduce(self, x: Tensor, dst: int, op: Op) -> None:
        self._note("reduce", x)

    def _broadcast(self, x: Tensor, src: int) -> None:
        self._note("broadcast", x)

    def _all_to_all(self, x: Tensor, out: Tensor) -> None:
        self._note("all_to_all", x)

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        self._note("all_gather", x)

    def _exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]:
        self._note("exchange", x, [peer - self.rank for peer in peers])
        return [x.new_empty(x.shape) for _ in peers]


class Meter(TorchDispatchMode):
    """Writes down the memory traffic of arithmetic on meta tensors: every tensor is read or written once."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(("empty", "new_empty", "detach")):
            given = [x for x in args if isinstance(x, Tensor)]
            overwritten = name in ("copy_", "zero_", "fill_")
            made = [x for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]
            nbytes = sum(x.nbytes for x in (given[1:] if overwritten else given)) + sum(x.nbytes for x in made)
            self._tape.operation(Traffic(float(nbytes)))
        return result


def _merged(ops: list[program.Op]) -> list[program.Op]:
    merged: list[program.Op] = []
    for op in ops:
        if isinstance(op, Traffic) and merged and isinstance(last := merged[-1], Traffic):
            merged[-1] = Traffic(last.nbytes + op.nbytes)
        else:
            merged.append(op)
    return merged
