"""PyTorch DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.stopwatch import stamp
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Program
from bagua_bench.peers import schedule
from bagua_bench.peers.base import Peer, PeerTrainer

MIB = 2**20


class DDP(Peer):
    """torch.nn.parallel.DistributedDataParallel; the defaults are PyTorch's (buckets of 25 MiB, the first of 1)."""

    def __init__(
        self,
        bucket_cap_mb: float = 25,
        first_bucket_cap_mb: float = 1,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        self._caps = first_bucket_cap_mb, bucket_cap_mb
        self.options: dict[str, Any] = {
            "bucket_cap_mb_list": caps(*self._caps),
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "DDP runs on a torch process group"
        return DDPTrainer(model, optimizer, comm, self.options)

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        return bucketed(layers, servers * per_server, steps, self._caps)


def caps(first: float, rest: float) -> list[float] | None:
    """DDP's `bucket_cap_mb_list`; None for PyTorch's own caps.

    With an explicit list, PyTorch also uses these buckets in its first step, which it does not by default.
    """
    return None if (first, rest) == (1, 25) else [first, rest]


def bucketed(
    layers: Layers,
    ranks: int,
    steps: int,
    caps: tuple[float, float],
    share: float = 1.0,
    casts: tuple[float, float] = (0.0, 0.0),
) -> Program:
    """DDP's steps; `share` of every gradient's bytes travels, cast before and after (`schedule.BucketSends`).

    Buckets are filled in the order in which gradients become ready, and closed once they reach their cap (first and
    rest, MiB).
    """
    first, rest = caps
    nbytes = schedule.sizes(layers)
    order = [position for layer in reversed(layers.layers) for position in reversed(layer.params)]
    buckets: list[list[int]] = [[]]
    for position in order:
        if sum(nbytes[i] for i in buckets[-1]) >= (first if len(buckets) == 1 else rest) * MIB:
            buckets.append([])
        buckets[-1].append(position)
    sends = schedule.BucketSends(buckets, [int(share * size) for size in nbytes], casts)
    found = schedule.program(layers, ranks, steps, sends, share * schedule.all_reduced(layers, ranks))
    return replace(found, asynchronous=True)


class DDPTrainer(PeerTrainer):
    """DDP waits for its communication inside the backward pass; the time of the last gradient tells the two apart."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, options: dict[str, Any]) -> None:
        self.model, self.optimizer = model, optimizer
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in self._trained]
        self.module = self._ddp = DistributedDataParallel(model, process_group=comm.group, **options)
        self._gradients = traffic.all_reduce(sum(p.nbytes for p in self._trained), comm.size)

    def _step_bytes(self) -> float:
        """Bytes that this rank sends in the backward pass of this step: DDP's collectives do not pass through `Comm`.

        Every synchronised step all-reduces all gradients once.
        """
        return self._gradients

    def _gradient_ready(self, p: Tensor) -> None:
        self.gradients_done = stamp(p.device, self.gradients_done)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def synchronize(self) -> None:
        self._sent += self._step_bytes()
        self._unscale_own()  # gradients are the same on all ranks, and so are overflows

    def close(self, failed: bool = False) -> None:
        for hook in self._hooks:
            hook.remove()
