"""A communicator that counts the bytes it sends and knows what one rank alone does; subclasses move the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from algorithms.base import Op
from bagua_bench.comm import traffic


class CommError(RuntimeError):
    """A collective failed: a peer died, or the time-out passed."""


class CountedComm(ABC):
    """Implements `algorithms.base.Comm` over six collectives of a subclass, which are called only for size > 1."""

    def __init__(self, rank: int, size: int, intra: CountedComm | None = None, inter: CountedComm | None = None):
        self.rank, self.size = rank, size
        self.intra, self.inter = intra, inter
        self._sent = 0.0

    @property
    def sent(self) -> dict[str, float]:
        """Bytes this rank has sent so far among all ranks, inside its server, and between leaders."""
        return {
            "flat": self._sent,
            "intra": self.intra._sent if self.intra else 0.0,
            "inter": self.inter._sent if self.inter else 0.0,
        }

    def all_reduce(self, x: Tensor, op: Op = Op.SUM) -> None:
        if self.size > 1:
            self._sent += traffic.all_reduce(x.nbytes, self.size)
            self._all_reduce(x, op)

    def reduce(self, x: Tensor, dst: int = 0, op: Op = Op.SUM) -> None:
        if self.size > 1:
            self._sent += traffic.reduce(x.nbytes, self.size, self.rank == dst)
            self._reduce(x, dst, op)

    def broadcast(self, x: Tensor, src: int = 0) -> None:
        if self.size > 1:
            self._sent += traffic.broadcast(x.nbytes, self.size, (self.rank - src) % self.size)
            self._broadcast(x, src)

    def all_to_all(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        received = x.new_empty(x.shape) if out is None else out
        self._sent += traffic.all_to_all(x.nbytes, self.size)
        if self.size == 1:
            return received.copy_(x)
        self._all_to_all(x, received)
        return received

    def all_gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        gathered = x.new_empty((self.size, *x.shape)) if out is None else out
        self._sent += traffic.all_gather(x.nbytes, self.size)
        if self.size == 1:
            return gathered.copy_(x[None])
        self._all_gather(x, gathered)
        return gathered

    def exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]:
        self._sent += traffic.exchange(x.nbytes, len(peers))
        return self._exchange(x, peers) if peers else []

    def close(self) -> None:
        """Give back what the communicator holds; no other rank needs it any more."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def _all_reduce(self, x: Tensor, op: Op) -> None: ...

    @abstractmethod
    def _reduce(self, x: Tensor, dst: int, op: Op) -> None: ...

    @abstractmethod
    def _broadcast(self, x: Tensor, src: int) -> None: ...

    @abstractmethod
    def _all_to_all(self, x: Tensor, out: Tensor) -> None: ...

    @abstractmethod
    def _all_gather(self, x: Tensor, out: Tensor) -> None: ...

    @abstractmethod
    def _exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]: ...
