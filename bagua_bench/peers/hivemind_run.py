"""hivemind itself. Importing this needs the package hivemind."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")  # hivemind reads it when it is imported; by default it is talkative

import hivemind
import torch
from hivemind.p2p import P2P
from torch import Tensor, nn
from torch.optim import Optimizer

from bagua_bench.comm import CommError, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.peers.base import PeerTrainer, own_address
from bagua_bench.processes.lifetime import die_with_parent

_ADDRESS = 512  # bytes for where rank 0's peer is found
_TIED = ("setpriv", "--pdeathsig", "KILL")  # a program that ends when its parent does


class HivemindTrainer(PeerTrainer):
    """Every rank has a node of the hash table, its networking daemon and an averager, each in a process of its own.

    Here a round must have all ranks: one that is lost ends the run. hivemind would go on with whoever is there.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        comm: TorchComm,
        sync_every: int,
        matchmaking_time: float,
        consensus: float,
    ) -> None:
        self.module = self.model = model
        self.optimizer = optimizer
        for tensor in model.state_dict().values():
            comm.broadcast(tensor)
        self.consensus, self._sync_every, self._taken, self._comm = consensus, sync_every, 0, comm
        self._weights = [p.detach() for p in model.parameters() if p.requires_grad]
        self._whole = traffic.all_reduce(sum(x.nbytes for x in self._weights), comm.size)
        self._files = tempfile.TemporaryDirectory(prefix="hivemind-")
        self._dht: Any = None
        self._averager: Any = None
        try:
            with _children(self._files.name):
                self._start(matchmaking_time)
        except BaseException:
            self.close(failed=True)
            raise

    def _start(self, matchmaking_time: float) -> None:
        comm, place = self._comm, torch.zeros(_ADDRESS, dtype=torch.uint8)
        for first in (True, False):  # the others join rank 0's table
            if first == (comm.rank == 0):
                known = [] if first else [bytes(place.tolist()).rstrip(b"\0").decode()]
                here = [f"/ip4/{own_address()}/tcp/0"]
                self._dht = hivemind.DHT(initial_peers=known, host_maddrs=here, start=True)
                if first:
                    found = str(self._dht.get_visible_maddrs()[0]).encode()
                    place[: len(found)] = torch.tensor(list(found), dtype=torch.uint8)
            if first:
                comm.broadcast(place)
        self._averager = hivemind.DecentralizedAverager(
            [x.clone() for x in self._weights],  # which it moves into shared memory
            self._dht,
            start=True,
            prefix="weights",
            target_group_size=comm.size,
            min_group_size=comm.size,
            min_matchmaking_time=matchmaking_time,
            request_timeout=0.6 * matchmaking_time,  # hivemind wants it shorter
            allreduce_timeout=comm.timeout,
        )
        comm.barrier()

    def synchronize(self) -> None:
        self._unscale_own()

    def finish_step(self) -> None:
        self._taken += 1
        if self._taken % self._sync_every == 0 and self._comm.size > 1:
            self._meet()
            self._sent += self._whole

    def _meet(self) -> None:
        """Average the weights of all ranks; CommError if they do not come together within the time-out."""
        with self._averager.get_tensors() as shared:
            _copy(self._weights, shared)
        try:
            limit = self._comm.timeout
            self._averager.step(wait=False, timeout=limit).result(timeout=limit)
        except Exception as error:
            raise CommError(f"hivemind: no round with all ranks: {type(error).__name__} {error}".rstrip()) from None
        with self._averager.get_tensors() as shared:
            _copy(shared, self._weights)

    def restart(self) -> None:
        self._taken = 0

    def close(self, failed: bool = False) -> None:
        if not failed:
            self._comm.barrier()  # the table of rank 0 is that of all
        for part in (self._averager, self._dht):
            if part is not None:
                if not failed:
                    part.shutdown()
                part.kill()  # and with the hash table's process the kernel ends its daemon
                part.join()
        self._files.cleanup()


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


@contextmanager
def _children(files: str) -> Iterator[None]:
    """A context in which processes that hivemind starts end with their parent, and their sockets are in a folder.

    hivemind also ignores interrupts in the process that starts them; afterwards they are as before.
    """
    parent, within = os.getpid(), [True]

    def tie() -> None:
        if within and os.getppid() == parent:
            die_with_parent(parent)

    os.register_at_fork(after_in_child=tie)
    arguments, sockets, interrupt = P2P._make_process_args, P2P._UNIX_SOCKET_PREFIX, signal.getsignal(signal.SIGINT)
    P2P._make_process_args = staticmethod(lambda *given, **named: [*_TIED, *arguments(*given, **named)])
    P2P._UNIX_SOCKET_PREFIX = f"/unix{files}/"
    try:
        yield
    finally:
        within.clear()
        P2P._make_process_args, P2P._UNIX_SOCKET_PREFIX = staticmethod(arguments), sockets
        signal.signal(signal.SIGINT, interrupt)
