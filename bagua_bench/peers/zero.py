"""DDP with PyTorch's ZeroRedundancyOptimizer: every rank updates its part of the parameters (ZeRO stage 1)."""

from __future__ import annotations

import inspect
from typing import Any, cast

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.trainer import Trainer
from bagua_bench.fused.optimizer import replaced, unfused
from bagua_bench.peers.base import Peer
from bagua_bench.peers.ddp import DDPTrainer


class Zero(Peer):
    """Gradients are all-reduced by DDP; each rank keeps optimizer state for whole tensors, and broadcasts these.

    Source: Rajbhandari et al., SC 2020. `parameters_as_bucket_view` has a rank's tensors broadcast as one.
    """

    def __init__(self, parameters_as_bucket_view: bool = False) -> None:
        self._as_view = parameters_as_bucket_view

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "ZeroRedundancyOptimizer runs on a torch process group"
        return ZeroTrainer(model, optimizer, comm, self._as_view)


class ZeroTrainer(DDPTrainer):
    """The user's optimizer is made anew for this rank's part, with the options of each of its groups."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, as_view: bool) -> None:
        super().__init__(model, optimizer, comm, {})
        plain = unfused(optimizer)
        self._zero = ZeroRedundancyOptimizer(
            [dict(group) for group in plain.param_groups],
            type(plain),
            process_group=comm.group,
            parameters_as_bucket_view=as_view,
            **_options(plain),
        )
        self.optimizer = self._zero.optim = replaced(optimizer, lambda _: self._zero.optim)
        owners: dict[nn.Parameter, int] = cast(Any, self._zero)._param_to_rank
        self._weights = sum(
            traffic.broadcast(p.nbytes, comm.size, (comm.rank - owner) % comm.size) for p, owner in owners.items()
        )

    def optimize(self) -> None:
        """The two halves of the optimizer's `step`, so that communication is not counted as arithmetic."""
        if self.scale is None or self.scale.accepts():
            cast(Any, self._zero)._local_step()
        self._zero.zero_grad(set_to_none=True)

    def finish_step(self) -> None:
        cast(Any, self._zero)._sync_params()
        self._sent += self._weights


def _options(optimizer: Optimizer) -> dict[str, Any]:
    """The constructor arguments of an optimizer, without what torch keeps beside them."""
    accepted = inspect.signature(type(optimizer)).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
