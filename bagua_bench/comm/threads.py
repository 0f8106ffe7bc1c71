"""A communicator among the threads of one process: every world size and layout, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from algorithms.base import Message, Op
from bagua_bench.comm.counted import CommError, CountedComm

_REDUCE: dict[Op, Callable[[Tensor, Tensor], Tensor]] = {
    Op.SUM: torch.add,
    Op.AVG: torch.add,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
}


class _Board:
    """A board on which the ranks of one group show each other their tensors."""

    def __init__(self, size: int, timeout: float) -> None:
        self.slots: list[list[Message]] = [[] for _ in range(size)]
        self.timeout = timeout
        self._changed = threading.Condition()
        self._arrived = self._meetings = 0
        self._aborted = False
        self.groups: dict[tuple[int, ...], _Board] = {}
        """By the ranks in it; a twin of this board by its number behind those of all ranks."""
        self._making = threading.Lock()

    def meet(self) -> None:
        """Return when all ranks are here, also where one of them fails right after; CommError if one never comes."""
        with self._changed:
            if not self._aborted:
                meeting, self._arrived = self._meetings, self._arrived + 1
                if self._arrived == len(self.slots):
                    self._arrived, self._meetings = 0, meeting + 1
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._meetings > meeting or self._aborted, self.timeout)
                if self._meetings > meeting:
                    return
            self._aborted = True
            self._changed.notify_all()
        raise CommError("a rank failed or the time-out passed")

    def group(self, ranks: tuple[int, ...]) -> _Board:
        """The board of some of the ranks, the same for all of them."""
        return self._board(ranks, len(ranks))

    def twin(self, number: int) -> _Board:
        """Another board for all ranks, the same for all of them."""
        size = len(self.slots)
        return self._board((*range(size), size + number), size)

    def _board(self, key: tuple[int, ...], size: int) -> _Board:
        with self._making:
            board = self.groups.setdefault(key, _Board(size, self.timeout))
            board._aborted |= self._aborted
            return board

    def abort(self) -> None:
        """Make pending and later meetings fail, those of groups as well, also of groups that are still to be made."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        with self._making:
            for board in self.groups.values():
                board.abort()


class ThreadComm(CountedComm):
    """One rank's end; make a whole world with `ThreadComm.world`. Reductions add in the order of ranks."""

    def __init__(
        self, board: _Board, rank: int, intra: ThreadComm | None = None, inter: ThreadComm | None = None
    ) -> None:
        super().__init__(rank, len(board.slots), intra, inter)
        self._board = board

    @classmethod
    def world(cls, size: int, ranks_per_server: int = 1, timeout: float = 60.0) -> list[ThreadComm]:
        """Communicators of `size` ranks, to be used by one thread each. `timeout` in seconds, for every call."""
        board, leaders = _Board(size, timeout), _Board(size // ranks_per_server, timeout)
        servers = [_Board(ranks_per_server, timeout) for _ in leaders.slots]
        comms = []
        for rank in range(size):
            server, local = divmod(rank, ranks_per_server)
            intra = cls(servers[server], local) if ranks_per_server > 1 else None
            inter = cls(leaders, server) if intra is not None and local == 0 else None
            comms.append(cls(board, rank, intra, inter))
        return comms

    def fail(self) -> None:
        """Make every pending and later call of all ranks fail, as the death of this rank would."""
        for comm in (self, self.intra, self.inter):
            if isinstance(comm, ThreadComm):
                comm._board.abort()

    def barrier(self) -> None:
        self._board.meet()

    def _share(self, x: Tensor) -> list[Tensor]:
        """Copies of everyone's x, in the order of ranks."""
        self._board.slots[self.rank] = [(self.rank, x)]
        self._board.meet()
        shown = [tensor.clone() for [(_, tensor)] in self._board.slots]
        self._board.meet()
        return shown

    def _reduced(self, x: Tensor, op: Op) -> Tensor:
        first, *others = self._share(x)
        for other in others:
            first = _REDUCE[op](first, other)
        return first / self.size if op is Op.AVG else first

    def _all_reduce(self, x: Tensor, op: Op) -> None:
        x.copy_(self._reduced(x, op))

    def _reduce(self, x: Tensor, dst: int, op: Op) -> None:
        total = self._reduced(x, op)
        if self.rank == dst:
            x.copy_(total)

    def _broadcast(self, x: Tensor, src: int) -> None:
        x.copy_(self._share(x)[src])

    def _all_to_all(self, x: Tensor, out: Tensor) -> None:
        torch.stack([other[self.rank] for other in self._share(x)], out=out)

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        torch.stack(self._share(x), out=out)

    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor:
        return self._reduced(x, op)[self.rank].clone()

    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._board.slots[self.rank] = list(sends)
        self._board.meet()
        queues = {r: [x.clone() for to, x in sent if to == self.rank] for r, sent in enumerate(self._board.slots)}
        self._board.meet()
        for source, out in receives:
            out.copy_(queues[source].pop(0))

    def _subgroup(self, ranks: tuple[int, ...]) -> ThreadComm:
        return ThreadComm(self._board.group(ranks), ranks.index(self.rank))

    def _twin(self, number: int) -> ThreadComm:
        return ThreadComm(self._board.twin(number), self.rank)
