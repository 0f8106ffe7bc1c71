"""Horovod itself, in workers that this suite has started. Importing this needs the package horovod."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousServer
from torch import nn
from torch.optim import Optimizer

from bagua_bench.comm import CommError, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.peers.base import PeerTrainer

_STARTED = "BAGUA_BENCH_HOROVOD_STARTED"  # of the environment: a fork of this process cannot start it either
_COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodTrainer(PeerTrainer):
    """Gradients go through `horovod.torch.DistributedOptimizer`; the step itself is the user's own optimizer's.

    settings: variables of the environment, which Horovod reads when it starts; None: not set. A process can
    start Horovod once.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        comm: TorchComm,
        settings: dict[str, str | None],
        compression: str,
    ) -> None:
        self.module = self.model = model
        self.optimizer = optimizer
        self._server = _start(comm, settings)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._hvd = hvd.DistributedOptimizer(
            torch.optim.SGD(list(self._trained.values()), lr=0.0),  # only its hooks are used
            named_parameters=list(self._trained.items()),
            compression=_COMPRESSIONS[compression],
        )
        nbytes = sum(p.numel() * (2 if compression == "fp16" else p.itemsize) for p in self._trained.values())
        self._step_bytes = traffic.all_reduce(nbytes, comm.size)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        delays: dict[nn.Parameter, int] = self._hvd._allreduce_delay  # its own option takes a number known beforehand
        for p in self._trained.values():
            delays[p] += 1
        yield

    def synchronize(self) -> None:
        try:
            self._hvd.synchronize()
        except HorovodInternalError as error:
            raise CommError(f"Horovod: {str(error).strip().splitlines()[0]}") from None
        self._sent += self._step_bytes
        self._unscale_own()

    def close(self, failed: bool = False) -> None:
        if not failed:
            hvd.shutdown()
        if self._server is not None:
            self._server.stop()


def _start(comm: TorchComm, settings: dict[str, str | None]) -> RendezvousServer | None:
    """Start Horovod on all ranks, which meet at a server of rank 0's; collective. Returns that, on rank 0.

    RuntimeError the second time in a process: Horovod 0.28.1 then crashes.
    """
    if _STARTED in os.environ:
        raise RuntimeError("Horovod cannot be started a second time in a process")
    os.environ[_STARTED] = "1"
    local = comm.intra.size if comm.intra else 1
    machine, number = divmod(comm.rank, local)
    port, server = torch.zeros(1, dtype=torch.int64), None
    if comm.rank == 0:
        server = RendezvousServer()
        port[0] = server.start()
        machines = comm.size // local
        server.init(
            SlotInfo(f"machine{rank // local}", rank, rank % local, rank // local, comm.size, local, machines)
            for rank in range(comm.size)
        )
    comm.broadcast(port)
    variables = {
        "HOROVOD_RANK": str(comm.rank),
        "HOROVOD_SIZE": str(comm.size),
        "HOROVOD_LOCAL_RANK": str(number),
        "HOROVOD_LOCAL_SIZE": str(local),
        "HOROVOD_CROSS_RANK": str(machine),
        "HOROVOD_CROSS_SIZE": str(comm.size // local),
        "HOROVOD_HOSTNAME": f"machine{machine}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(int(port)),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(ceil(comm.timeout)),
        **settings,
    }
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    hvd.init()
    return server
