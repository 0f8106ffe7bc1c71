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
from bagua_bench.emulate.layers import Layers
from bagua_bench.peers import schedule
from bagua_bench.peers.base import Peer
from bagua_bench.simulate.program import Program
from bagua_bench.training.clock import stamp
from bagua_bench.training.trainer import Trainer

MIB = 2**20
_DEFAULT = 25  # MiB


class DDP(Peer):
    """torch.nn.parallel.DistributedDataParallel with PyTorch's defaults."""

    def __init__(
        self,
        bucket_cap_mb: float = _DEFAULT,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        self.options: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "DDP runs on a torch process group"
        return DDPTrainer(model, optimizer, comm, self.options)

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        """Buckets in the order of readiness, each closed at `bucket_cap_mb` MiB; by default the first at 1 MiB."""
        limit = self.options["bucket_cap_mb"]
        nbytes, ranks = schedule.sizes(layers), servers * per_server
        order = [position for layer in reversed(layers.layers) for position in reversed(layer.params)]
        buckets: list[list[int]] = [[]]
        for position in order:
            cap = MIB if len(buckets) == 1 and limit == _DEFAULT else limit * MIB
            if sum(nbytes[i] for i in buckets[-1]) >= cap:
                buckets.append([])
            buckets[-1].append(position)
        sends = schedule.BucketSends(buckets, nbytes)
        found = schedule.program(layers, ranks, steps, sends, schedule.all_reduced(layers, ranks))
        return replace(found, asynchronous=True)


class DDPTrainer(Trainer):
    """DDP waits for its communication inside the backward pass; the last gradient's time tells the two apart."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, options: dict[str, Any]) -> None:
        self.model, self.optimizer = model, optimizer
        trained = [p for p in model.parameters() if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in trained]
        self.module = self._ddp = DistributedDataParallel(model, process_group=comm.group, **options)
        self._per_step = traffic.all_reduce(sum(p.nbytes for p in trained), comm.size)
        self._sent = 0.0

    def _gradient_ready(self, p: Tensor) -> None:
        self.gradients_done = stamp(p.device, self.gradients_done)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def synchronize(self) -> None:
        self._sent += self._per_step
        self._unscale_own()  # they are the same everywhere: so is what overflowed

    def optimize(self) -> None:
        self._advance()

    def restart(self) -> None:
        pass

    def sent(self) -> dict[str, float]:
        """DDP's collectives do not pass through `Comm`: every synchronised step all-reduces all gradients once."""
        return {"flat": self._sent, "intra": 0.0, "inter": 0.0}

    def close(self, failed: bool = False) -> None:
        for hook in self._hooks:
            hook.remove()
