"""Pushes partitions of gradients to servers and pulls their means: the exchange of the parameter server."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.comm import CommError
from bagua_bench.comm.torch_groups import TorchComm, errors

_FOREVER = timedelta(days=365)  # a server waits for workers as long as these compute
_POLL = 0.1  # seconds
_HEADER = torch.int64  # what says which partition was sent next
_END = -1  # in place of a partition: there are no more


@dataclass(frozen=True)
class Part:
    """A partition of a gradient: elements `begin` to `end` of the parameter at `position`, kept by rank `owner`."""

    number: int
    position: int
    begin: int
    end: int
    owner: int


def parts_of(gradients: Sequence[Tensor], nbytes: int, owners: range) -> list[Part]:
    """The partitions of gradients, of at most `nbytes` each; a partition goes to the owner that has least so far."""
    held, found = [0] * len(owners), list[Part]()
    for position, gradient in enumerate(gradients):
        size, most = gradient.numel(), max(1, nbytes // gradient.itemsize)
        for begin in range(0, size, most):
            end = min(begin + most, size)
            least = held.index(min(held))
            held[least] += (end - begin) * gradient.itemsize
            found.append(Part(len(found), position, begin, end, owners[least]))
    return found


@dataclass
class _Ticket:
    """A partition that this rank has pushed in this step; it is `settled` once its sum is here, or on its way."""

    settled: threading.Event = field(default_factory=threading.Event)
    pull: dist.Work | None = None
    """The sum's way."""


@dataclass
class _Sum:
    """A partition that this rank keeps."""

    part: Part
    total: Tensor
    pushed: dict[int, Tensor]
    """What other ranks push, by rank."""
    missing: int
    """Ranks that have not pushed yet in this step."""
    receives: dict[int, dist.Work] = field(default_factory=dict)
    own: tuple[Tensor, _Ticket] | None = None
    """What this rank pushes itself."""
    replies: list[dist.Work] = field(default_factory=list)
    rounds: int = 0
    """How often it has been added up and sent."""


class Shares:
    """One rank's side of the exchange: a worker, the server of its partitions, or both; `comm` ends with it.

    A worker has a thread for every server, which sends it partitions; a server has one for every worker, which takes in
    what it pushes. Messages have tags: 0 says which partition was sent next; 1 and so on are partitions on their way to
    a server, and those behind these are sums on their way back. A server awaits every partition of the next step as
    soon as it has the sum of this one, because gloo sends only what is awaited.

    gradients: tensors of the same sizes and types as those that are pushed. over: what sums are divided by.
    workers: how many ranks push; they are the first. servers: those that keep partitions, which may be the same ones.
    """

    def __init__(
        self,
        comm: TorchComm,
        parts: Sequence[Part],
        gradients: Sequence[Tensor],
        credit: int,
        over: int,
        workers: int,
        servers: range,
    ) -> None:
        self._comm, self._parts, self._credit, self._over = comm, parts, credit, over
        self._works, self._serves = comm.rank < workers, comm.rank in servers
        self._workers = workers
        self._others = [rank for rank in range(workers) if rank != comm.rank]
        self._servers = [rank for rank in servers if rank != comm.rank]
        self._error: BaseException | None = None
        self._ends = False
        self._moved = 0.0  # when a partition came or went
        self._lock = threading.Condition()
        self._queues: dict[int, list[tuple[int, int, Tensor, _Ticket]]] = {rank: [] for rank in self._servers}
        self._tickets: list[_Ticket] = []
        self._of: dict[int, list[Part]] = {}
        self._sums: dict[int, _Sum] = {}
        self._steps = step = 0
        for part in parts:
            self._of.setdefault(part.position, []).append(part)
            like = gradients[part.position]
            nbytes = (part.end - part.begin) * like.itemsize
            if part.owner == comm.rank:
                self._sums[part.number] = self._sum_of(part, like)
                step += len(self._others) * nbytes
            elif self._works:
                step += _HEADER.itemsize + nbytes
        self._step_bytes = step
        self.sent = 0.0
        """Bytes of partitions, sums and headers that this rank has sent in the steps that are over."""
        self._threads = [self._start(self._send, rank) for rank in self._servers if self._works]
        self._threads += [self._start(self._take_in, rank) for rank in self._others if self._serves]

    # -- the worker -------------------------------------------------------------------------------------------

    def push(self, position: int, gradient: Tensor) -> None:
        """Have all of a flat gradient replaced by the mean; it is in use until `wait` returns."""
        own = []
        with self._lock:
            for part in self._of[position]:
                piece, ticket = gradient[part.begin : part.end], _Ticket()
                self._tickets.append(ticket)
                if part.owner == self._comm.rank:
                    own.append(self._sums[part.number])
                    own[-1].own = piece, ticket
                else:
                    heapq.heappush(self._queues[part.owner], (position, part.number, piece, ticket))
            self._lock.notify_all()
        for one in own:
            self._arrived(one)

    def wait(self) -> None:
        """Return when everything that was pushed in this step is replaced, or was served by a rank that only serves.

        CommError if a rank is lost, or too late.
        """
        self._moved = time.monotonic()
        for ticket in self._tickets:
            while not ticket.settled.wait(_POLL):
                self._check()
            if ticket.pull is not None:
                with errors("pull"):
                    ticket.pull.wait()
        self._tickets.clear()
        self._steps += 1
        if not self._works:
            with self._lock:
                while not self._lock.wait_for(self._served, _POLL):
                    self._check()
        self.sent += self._step_bytes

    def _check(self) -> None:
        if self._error is not None:
            raise CommError(f"a partition is lost: {self._error}")
        if time.monotonic() > self._moved + self._comm.timeout:
            raise CommError(f"no partition has come for {self._comm.timeout:g} s")

    def _served(self) -> bool:
        return all(one.rounds >= self._steps for one in self._sums.values())

    def _send(self, rank: int) -> None:
        under_way: deque[tuple[dist.Work, dist.Work, Tensor]] = deque()
        while True:
            while len(under_way) >= self._credit:
                for work in under_way.popleft()[:2]:
                    work.wait()
            with self._lock:
                self._lock.wait_for(lambda: self._queues[rank] or self._ends)
                if not self._queues[rank]:
                    break
                _, number, piece, ticket = heapq.heappop(self._queues[rank])
            ticket.pull = self._receive(piece, rank, self._reply_tag(number))
            self._settle(ticket)
            header = torch.tensor([number], dtype=_HEADER)
            under_way.append((self._post(header, rank, 0), self._post(piece, rank, 1 + number), header))
        end = torch.tensor([_END], dtype=_HEADER)
        self._post(end, rank, 0).wait()

    # -- the server -------------------------------------------------------------------------------------------

    def _sum_of(self, part: Part, like: Tensor) -> _Sum:
        size = part.end - part.begin
        pushed = {rank: torch.empty(size, dtype=like.dtype) for rank in self._others}
        found = _Sum(part, torch.empty(size, dtype=like.dtype), pushed, self._workers)
        self._await(found)
        return found

    def _await(self, one: _Sum) -> None:
        one.missing = self._workers
        one.receives = {rank: self._receive(x, rank, 1 + one.part.number) for rank, x in one.pushed.items()}

    def _take_in(self, rank: int) -> None:
        headers = deque(self._header(rank) for _ in range(self._credit + 1))
        while True:
            header, work = headers.popleft()
            work.wait(_FOREVER)
            number = int(header)
            if number == _END:
                return
            headers.append(self._header(rank))
            one = self._sums[number]
            one.receives[rank].wait(_FOREVER)
            self._arrived(one)

    def _header(self, rank: int) -> tuple[Tensor, dist.Work]:
        header = torch.empty(1, dtype=_HEADER)
        return header, self._receive(header, rank, 0)

    def _arrived(self, one: _Sum) -> None:
        """Count what a rank has pushed; with the last one, add up in the order of ranks and send the mean to all."""
        with self._lock:
            one.missing -= 1
            if one.missing:
                return
        terms = dict(one.pushed)
        own, one.own = one.own, None
        if own is not None:
            terms[self._comm.rank] = own[0]
        one.total.copy_(terms[0])
        for rank in range(1, self._workers):
            one.total.add_(terms[rank])
        one.total.div_(self._over)
        self._await(one)
        one.replies = [self._post(one.total, rank, self._reply_tag(one.part.number)) for rank in self._others]
        if own is not None:
            own[0].copy_(one.total)
            self._settle(own[1])
        with self._lock:
            self._moved = time.monotonic()
            one.rounds += 1
            self._lock.notify_all()

    # -- both -------------------------------------------------------------------------------------------------

    def close(self, failed: bool) -> None:
        """End the threads and the communicator; collective, unless this rank or another has failed."""
        with self._lock:
            self._ends = True
            self._lock.notify_all()
        deadline = time.monotonic() + (0 if failed else self._comm.timeout)
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        if failed or self._error is not None or any(thread.is_alive() for thread in self._threads):
            self._comm.abandon()
            return
        for one in self._sums.values():
            for work in one.replies:
                work.wait()
        self._comm.barrier()
        self._comm.close()

    def _settle(self, ticket: _Ticket) -> None:
        self._moved = time.monotonic()
        ticket.settled.set()

    def _reply_tag(self, number: int) -> int:
        return 1 + len(self._parts) + number

    def _post(self, x: Tensor, rank: int, tag: int) -> dist.Work:
        work = dist.isend(x, group=self._comm.group, group_dst=rank, tag=tag)
        assert work is not None
        return work

    def _receive(self, x: Tensor, rank: int, tag: int) -> dist.Work:
        work = dist.irecv(x, group=self._comm.group, group_src=rank, tag=tag)
        assert work is not None
        return work

    def _start(self, work: Callable[[int], None], rank: int) -> threading.Thread:
        def run() -> None:
            try:
                work(rank)
            except BaseException as error:  # `wait` raises it
                self._error = self._error or error

        thread = threading.Thread(target=run, name=f"parameter server {rank}", daemon=True)
        thread.start()
        return thread
