"""A communicator on torch process groups (gloo, NCCL, or any other backend of torch.distributed)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from algorithms.base import Message, Op
from bagua_bench.comm.counted import CommError, CountedComm
from bagua_bench.comm.servers import ranks_per_server

_OPS = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.AVG: dist.ReduceOp.AVG,
    Op.MIN: dist.ReduceOp.MIN,
    Op.MAX: dist.ReduceOp.MAX,
}

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # renamed in torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # the same


def init_default(store: Store, rank: int, size: int, timeout: float) -> None:
    """Make torch.distributed's default group, over gloo; collective. `timeout` in seconds.

    A process may do so again, among others, after it has destroyed the group; every one needs a store of its own.
    CommError if a rank is lost meanwhile.
    """
    _made.clear()  # these ranks may be new to each other
    with errors("init_process_group"):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))


def gathered(own: Any) -> list[Any]:
    """What each rank of the default group gives, in rank order; collective. Any object that can be pickled."""
    everyone: list[Any] = [None] * dist.get_world_size()
    with errors("all_gather_object"):
        dist.all_gather_object(everyone, own)
    return everyone


class TorchComm(CountedComm):
    """Collectives of one process group; `torch.distributed` must be initialised.

    Over NCCL a call returns before it is done, so a later failure raises nothing here: torch's watchdog ends the
    process when the time-out has passed.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        timeout: float,
        intra: TorchComm | None = None,
        inter: TorchComm | None = None,
    ) -> None:
        super().__init__(group.rank(), group.size(), intra, inter)
        self.group = group
        self.timeout = timeout
        """Seconds."""
        self._backend = dist.get_backend(group)
        self._is_gloo = self._backend == "gloo"
        self._variables: Mapping[str, str] = {}  # of the environment, which the transport reads when it connects

    @classmethod
    def create(cls, backend: str, timeout: float, ranks_per_server: int = 1) -> TorchComm:
        """Make own groups over all ranks; collective. Ranks of a server are consecutive. `timeout` in seconds.

        ValueError if the servers would have unequal numbers of ranks, CommError if a rank is lost meanwhile.
        """
        world, rank = dist.get_world_size(), dist.get_rank()
        if world % ranks_per_server:
            raise ValueError(f"ranks_per_server={ranks_per_server}: {world} ranks do not fill the servers equally")

        def group_of(ranks: list[int]) -> TorchComm | None:
            with errors("new_group"):
                group = dist.new_group(ranks, timeout=timedelta(seconds=timeout), backend=backend)
            return cls(group, timeout) if rank in ranks else None

        intra = inter = None
        if ranks_per_server > 1:
            leaders = list(range(0, world, ranks_per_server))
            servers = [group_of(list(range(first, first + ranks_per_server))) for first in leaders]
            intra, inter = servers[rank // ranks_per_server], group_of(leaders)
        everyone = group_of(list(range(world)))
        assert everyone is not None
        everyone.intra, everyone.inter = intra, inter
        return everyone

    @classmethod
    def default(cls) -> TorchComm:
        """Own groups over all ranks of the job, with its backend, time-out and torchrun's layout; collective.

        RuntimeError if torch.distributed is not initialised, ValueError if servers have unequal numbers of ranks.
        """
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group first")
        return cls.create(dist.get_backend(), _timeout(), ranks_per_server(_timeout()))

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if self._backend == "nccl" else torch.device("cpu")

    def another(self) -> TorchComm:
        """A new communicator among the same ranks, which ends with whoever asked for it; collective."""
        return self._subgroup(tuple(range(self.size)))

    def streams(self) -> dict[str, list[dict[str, float]]] | None:
        """The transport's counts per stream to each rank so far; None if it does not count."""
        if not hasattr(self.group, "report"):
            return None
        found = {str(peer): self.group.report(peer) for peer in range(self.size) if peer != self.rank}
        for part in (*self._twins, self._renewed):
            for peer, streams in (part.streams() or {}).items() if isinstance(part, TorchComm) else ():
                found[peer] = [*found[peer], *streams]
        return found

    def every_stream(self) -> dict[str, list[dict[str, float]]] | None:
        """The same with those of messages, and of the groups within and between servers; by rank of the job."""
        if not hasattr(self.group, "report"):
            return None
        found: dict[str, list[dict[str, float]]] = {}
        for comm in (self, self.intra, self.inter):
            for group in () if comm is None else comm._groups_of_its_own():  # type: ignore[attr-defined]
                for place, peer in enumerate(dist.get_process_group_ranks(group)):
                    if place != group.rank():
                        found.setdefault(str(peer), []).extend([*group.report(place), *group.report(place, lane=1)])
        return found

    def _groups_of_its_own(self) -> Iterator[Any]:
        yield self.group
        for part in self._parts():
            if isinstance(part, TorchComm):
                yield from part._groups_of_its_own()

    @property
    def settings(self) -> Mapping[str, int]:
        return getattr(self.group, "settings", {})

    @property
    def choices(self) -> Mapping[str, range]:
        return getattr(self.group, "choices", {})

    def close(self) -> None:
        for part in self._parts():
            part.intra = part.inter = None  # they were made of this one's, which close them
        for comm in (*self._parts(), self.intra, self.inter):
            if comm is not None:
                comm.close()
        dist.destroy_process_group(self.group)
        del self.group  # its threads and sockets end with the last reference

    def abandon(self) -> None:
        for comm in (self, *self._parts(), self.intra, self.inter):
            if isinstance(comm, TorchComm):
                comm.group.abort()  # calls of this rank's other threads
        self.close()

    def barrier(self) -> None:
        with errors("barrier"):
            dist.barrier(self.group)

    def _all_reduce(self, x: Tensor, op: Op) -> None:
        with errors("all_reduce"):
            dist.all_reduce(x, _OPS[op], self.group)

    def _reduced_bytes(self, x: Tensor, op: Op) -> int:
        travels = getattr(self.group, "reduced_bytes", None)
        return x.nbytes if travels is None else int(travels(x, _OPS[op]))

    def _reduce(self, x: Tensor, dst: int, op: Op) -> None:
        with errors("reduce"):
            dist.reduce(x, op=_OPS[op], group=self.group, group_dst=dst)

    def _broadcast(self, x: Tensor, src: int) -> None:
        with errors("broadcast"):
            dist.broadcast(x, group=self.group, group_src=src)

    def _all_to_all(self, x: Tensor, out: Tensor) -> None:
        with errors("all_to_all"):
            if self._is_gloo:
                out[self.rank].copy_(x[self.rank])
                self._move([(peer, x[peer]) for peer in self._others()], [(peer, out[peer]) for peer in self._others()])
            else:
                dist.all_to_all_single(out, x, group=self.group)

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        with errors("all_gather"):
            if self._is_gloo:
                out[self.rank].copy_(x)
                self._move([(peer, x) for peer in self._others()], [(peer, out[peer]) for peer in self._others()])
            else:
                _all_gather(out, x[None], group=self.group)

    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor:
        out = torch.empty_like(x[0])
        with errors("reduce_scatter"):
            _reduce_scatter(out[None], x, _OPS[op], group=self.group)
        return out

    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        with errors("send_receive"):
            self._move(sends, receives)

    def _subgroup(self, ranks: tuple[int, ...]) -> TorchComm:
        return self._new_group(ranks, self._variables)

    def _new_group(self, ranks: tuple[int, ...], variables: Mapping[str, str]) -> TorchComm:
        everyone = dist.get_process_group_ranks(self.group)
        with _own_names(), patch.dict(os.environ, variables), errors("new_group"):
            made = dist.new_group(
                [everyone[rank] for rank in ranks],
                timeout=timedelta(seconds=self.timeout),
                backend=self._backend,
                use_local_synchronization=True,
            )
        comm = TorchComm(made, self.timeout)
        comm._variables = variables
        return comm

    def _twin(self, number: int) -> TorchComm:
        return self._subgroup(tuple(range(self.size)))

    def _with(self, settings: Mapping[str, int]) -> TorchComm:
        return self._new_group(tuple(range(self.size)), self.group.variables(settings))  # type: ignore[attr-defined]

    def _others(self) -> list[int]:
        """All other ranks, the next one first, so that no rank comes first for all."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def _move(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Direct messages.

        Receives come first: gloo sends a message only once it knows that the peer waits for it. On a slow network that
        news would otherwise queue behind the data, and one direction would wait for the other.
        """
        calls = [dist.P2POp(dist.irecv, out, group=self.group, group_peer=peer) for peer, out in receives]
        calls += [dist.P2POp(dist.isend, x, group=self.group, group_peer=peer) for peer, x in sends]
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()


def _timeout() -> float:
    """Time-out of the job's default group, seconds."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    options = getattr(dist.distributed_c10d._get_default_group()._get_backend(device), "options", None)
    found: timedelta = getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)
    return found.total_seconds()


_made: Counter[tuple[int, ...]] = Counter()


@contextmanager
def _own_names() -> Iterator[None]:
    """Name groups that only their members make by these ranks and how many groups they have made before.

    torch takes how many groups of any kind the process has, which differs between a server's leader and its other
    ranks: they then wait for each other under different names, until the time-out.
    """

    def name(ranks: list[int]) -> str:
        _made[tuple(ranks)] += 1
        return f"bagua {ranks} {_made[tuple(ranks)]}"

    with patch.object(dist.distributed_c10d, "_hash_ranks_to_str", name):
        yield


@contextmanager
def errors(call: str) -> Iterator[None]:
    """Say which call failed.

    No dispatch mode sees inside: an emulation's, which meters the algorithm's own arithmetic, would take as long as
    small messages do.
    """
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        # The traceback would keep the group alive, and with it connections that others wait on.
        raise CommError(f"{call} failed: {reason}") from error.with_traceback(None)
    finally:
        del guard
