"""A communicator that counts the bytes it sends and handles the case of one rank; subclasses move the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from algorithms.base import Message, Op
from bagua_bench.comm import traffic


class CommError(RuntimeError):
    """A collective failed: a peer died, or the time-out passed."""


class CountedComm(ABC):
    """Implements `algorithms.base.Comm` over collectives of a subclass, which are called only for size > 1."""

    def __init__(self, rank: int, size: int, intra: CountedComm | None = None, inter: CountedComm | None = None):
        self.rank, self.size = rank, size
        self.intra, self.inter = intra, inter
        self._sent = 0.0
        self._groups: dict[tuple[int, ...], CountedComm] = {}
        self._twins: list[CountedComm] = []
        self._more: list[CountedComm] = []
        self._renewed: CountedComm | None = None

    @property
    def device(self) -> torch.device:
        """Where a tensor can lie that it moves."""
        return torch.device("cpu")

    @property
    def sent(self) -> dict[str, float]:
        """Bytes this rank has sent so far among all ranks and in groups of them, inside its server, between leaders."""
        return {
            "flat": self._total(),
            "intra": self.intra._total() if self.intra else 0.0,
            "inter": self.inter._total() if self.inter else 0.0,
        }

    def _total(self) -> float:
        return self._sent + sum(other._total() for other in self._parts())

    def _parts(self) -> list[CountedComm]:
        """The communicators made of this one, whose bytes count as this one's."""
        renewed = [] if self._renewed is None else [self._renewed]
        return [*self._groups.values(), *self._twins, *self._more, *renewed]

    def all_reduce(self, x: Tensor, op: Op = Op.SUM) -> None:
        if self.size > 1:
            self._sent += traffic.all_reduce(self._reduced_bytes(x, op), self.size)
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

    def gather_ragged(self, x: Tensor) -> list[Tensor]:
        lengths = self._lengths(x)
        gathered = [x if rank == self.rank else x.new_empty(length) for rank, length in enumerate(lengths)]
        others = [(self.rank + i) % self.size for i in range(1, self.size)]  # so no rank is first for all
        self.send_receive([(r, x) for r in others], [(r, gathered[r]) for r in others])
        return gathered

    def reduce_scatter(self, x: Tensor, op: Op = Op.SUM) -> Tensor:
        if self.size == 1:
            return x[0].clone()
        self._sent += traffic.reduce_scatter(x.nbytes, self.size)
        return self._reduce_scatter(x, op)

    def exchange(self, x: Tensor, peers: Sequence[int]) -> list[Tensor]:
        received = [torch.empty_like(x) for _ in peers]
        self.send_receive([(peer, x) for peer in peers], list(zip(peers, received, strict=True)))
        return received

    def send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._sent += sum(x.nbytes for _, x in sends)
        self._send_receive(sends, receives)

    def subgroup(self, ranks: Sequence[int]) -> CountedComm:
        members = tuple(ranks)
        if list(members) != sorted({*members} & {*range(self.size)}) or self.rank not in members:
            raise ValueError(
                f"subgroup({list(members)}): ascending ranks of 0 to {self.size - 1}, {self.rank} among them"
            )
        if members not in self._groups:
            self._groups[members] = self._subgroup(members)
        return self._groups[members]

    def channels(self, number: int) -> list[CountedComm]:
        """This communicator and others among the same ranks, which work beside it; collective.

        The bytes that they send count as this one's.
        """
        while len(self._twins) < number - 1:
            intra, inter = (own.channels(len(self._twins) + 2)[-1] if own else None for own in (self.intra, self.inter))
            twin = self._twin(len(self._twins))
            twin.intra, twin.inter = intra, inter
            self._twins.append(twin)
        return [self, *self._twins[: number - 1]]

    def another(self) -> CountedComm:
        """One more communicator among the same ranks, for a single user; collective.

        It is closed with this one, and the bytes that it sends count as this one's.
        """
        self._more.append(self._twin(-1 - len(self._more)))
        return self._more[-1]

    @property
    def settings(self) -> Mapping[str, int]:
        """What can be tuned of the transport, and how it is set now."""
        return {}

    @property
    def choices(self) -> Mapping[str, range]:
        """The values that each of `settings` may have."""
        return {}

    def renewed(self, settings: Mapping[str, int]) -> CountedComm:
        """A communicator among the same ranks over connections with other settings; collective.

        The one that was made before it is closed. The bytes that it sends count as this one's.
        """
        if self._renewed is not None:
            self._sent += self._renewed._total()
            self._renewed.intra = self._renewed.inter = None  # theirs, which close them
            self._renewed.close()
        inside, leaders = (own.renewed(settings) if own else None for own in (self.intra, self.inter))
        self._renewed = self._with(settings)
        self._renewed.intra, self._renewed.inter = inside, leaders
        return self._renewed

    def close(self) -> None:
        """Release the communicator's resources; no other rank needs them any more."""

    def abandon(self) -> None:
        """Release it while others may need it: calls of theirs that wait for this rank fail."""
        self.close()

    def _lengths(self, x: Tensor) -> list[int]:
        """The lengths of everyone's x."""
        own = torch.tensor([len(x)], device=x.device)
        return [int(length) for length in self.all_gather(own).flatten().tolist()]

    def _reduced_bytes(self, x: Tensor, op: Op) -> int:
        """What x travels as in an all-reduce."""
        return x.nbytes

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
    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor: ...

    @abstractmethod
    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Also called where both are empty: in an implementation in which all ranks meet, each has to come."""

    @abstractmethod
    def _subgroup(self, ranks: tuple[int, ...]) -> CountedComm: ...

    def _with(self, settings: Mapping[str, int]) -> CountedComm:
        """Another communicator among the same ranks with these settings, without `intra` and `inter`."""
        raise ValueError(f"{type(self).__name__}: nothing can be set")

    @abstractmethod
    def _twin(self, number: int) -> CountedComm:
        """Another communicator among the same ranks, without `intra` and `inter`."""
