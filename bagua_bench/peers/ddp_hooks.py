"""DDP with PyTorch's own communication hooks, as far as they work on CPUs; options and defaults are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.optim import Optimizer

from algorithms.base import Least
from bagua_bench.comm import CountedComm, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Program
from bagua_bench.peers.base import Peer
from bagua_bench.peers.ddp import MIB, DDPTrainer, bucketed, caps

_CASTS = 5.0, 3.0
"""Bytes of memory traffic per byte of float16: read 4, write 2, divide in place (2 and 2); then read 2, write 4."""


class FP16(Peer):
    """DDP with `fp16_compress_hook`: gradients travel as float16, divided by the number of ranks before."""

    def __init__(self, bucket_cap_mb: float = 25, first_bucket_cap_mb: float = 1) -> None:
        self._caps = first_bucket_cap_mb, bucket_cap_mb

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "DDP runs on a torch process group"
        return FP16Trainer(model, optimizer, comm, {"bucket_cap_mb_list": caps(*self._caps)})

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        return bucketed(layers, servers * per_server, steps, self._caps, 0.5, _CASTS)


class FP16Trainer(DDPTrainer):
    """DDP whose gradients are float16 on their way."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, options: dict[str, Any]) -> None:
        super().__init__(model, optimizer, comm, options)
        self._ddp.register_comm_hook(comm.group, fp16_compress_hook)
        self._gradients = traffic.all_reduce(sum(2 * p.numel() for p in self._trained), comm.size)


class PowerSGD(Peer):
    """DDP with `powerSGD_hook`: matrices travel as the product of two thin ones (Vogels et al., NeurIPS 2019).

    All parameters are one bucket: over gloo, the hook's collectives of several buckets come in different orders on
    different ranks, and the process is aborted. PyTorch's hook needs two steps of all-reduce before it begins.
    """

    def __init__(
        self,
        matrix_approximation_rank: Annotated[int, Least(1)] = 1,
        start_powerSGD_iter: Annotated[int, Least(2)] = 1000,
        min_compression_rate: Annotated[float, Least(1)] = 2,
        orthogonalization_epsilon: float = 0,
    ) -> None:
        self._options: dict[str, Any] = {
            "matrix_approximation_rank": matrix_approximation_rank,
            "start_powerSGD_iter": start_powerSGD_iter,
            "min_compression_rate": min_compression_rate,
            "orthogonalization_epsilon": orthogonalization_epsilon,
        }

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "DDP runs on a torch process group"
        group = comm.group
        return PowerSGDTrainer(model, optimizer, comm, lambda: PowerSGDState(group, **self._options))


class PowerSGDTrainer(DDPTrainer):
    """DDP in one bucket, with the hook's state made anew by `make` when training starts over."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, make: Callable[[], PowerSGDState]
    ) -> None:
        whole = sum(p.nbytes for p in model.parameters()) / MIB + 1
        super().__init__(model, optimizer, comm, {"bucket_cap_mb_list": [whole, whole]})
        self._make, self._state = make, make()
        self._ddp.register_comm_hook(self._state, powerSGD_hook)
        self._compressed = traffic.all_reduce(sum(map(self._travels, self._trained)), comm.size)

    def _travels(self, p: Tensor) -> int:
        """Bytes of p's gradient, or of its two factors if they are enough smaller."""
        rows = p.shape[0] if p.ndim else 1
        columns = p.numel() // rows
        rank = min(rows, columns, self._state.matrix_approximation_rank)
        factors = rank * (rows + columns)
        return p.itemsize * (factors if factors * self._state.min_compression_rate < p.numel() else p.numel())

    def _step_bytes(self) -> float:
        taken = self._state.iter  # counts up to the first compressed step
        return self._compressed if taken >= self._state.start_powerSGD_iter and self._begun() else self._gradients

    def _begun(self) -> bool:
        """Whether the step that is being synchronised was compressed: its factors are there."""
        return bool(self._state.q_memory_dict)

    def restart(self) -> None:
        _reset(self._state, self._make())


class PostLocalSGD(Peer):
    """DDP that goes over to local SGD (Lin et al., ICLR 2020): `post_localSGD_hook` and a `PeriodicModelAverager`.

    After `start_localSGD_iter` steps gradients are averaged inside each server only, and weights among all ranks every
    `period` steps. The defaults are the values of PyTorch's documentation.
    """

    consensus = 0.75

    def __init__(
        self, start_localSGD_iter: Annotated[int, Least(0)] = 100, period: Annotated[int, Least(1)] = 4
    ) -> None:
        self._start, self._period = start_localSGD_iter, period

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "DDP runs on a torch process group"
        return PostLocalSGDTrainer(model, optimizer, comm, self._start, self._period, self.consensus)


class PostLocalSGDTrainer(DDPTrainer):
    """DDP with fewer and fewer global all-reduces; the averager counts the steps."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, start: int, period: int, consensus: float
    ) -> None:
        super().__init__(model, optimizer, comm, {})
        self.consensus = consensus
        self._comm, inside = comm, comm.intra
        assert inside is None or isinstance(inside, TorchComm)
        own = None if inside is None else inside.group
        self._state = PostLocalSGDState(comm.group, own, start, post_local_gradient_allreduce=inside is not None)
        self._averager = PeriodicModelAverager(period, start, comm.group)
        self._ddp.register_comm_hook(self._state, post_localSGD_hook)
        self._in_server = 0.0

    def _step_bytes(self) -> float:
        if self._averager.step < self._state.start_localSGD_iter:
            return self._gradients
        if self._comm.intra is not None:
            self._in_server += traffic.all_reduce(sum(p.nbytes for p in self._trained), self._comm.intra.size)
        return 0.0

    def optimize(self) -> None:
        if self.scale is None or self.scale.accepts():
            self.optimizer.step()

    def finish_step(self) -> None:
        since = self._averager.step - self._state.start_localSGD_iter
        if since >= 0 and since % self._averager.period == 0:
            self._sent += self._gradients  # weights have as many bytes
        self._averager.average_parameters(self._trained)  # of those that have a gradient, so it is cleared afterwards
        self.optimizer.zero_grad(set_to_none=True)

    def restart(self) -> None:
        self._state.iter = self._averager.step = 0

    def sent(self) -> dict[str, float]:
        return {"flat": self._sent, "intra": self._in_server, "inter": 0.0}


def _reset(state: PowerSGDState, fresh: PowerSGDState) -> None:
    """Put a hook's state, which DDP keeps, back to its start."""
    for slot in state.__slots__:
        setattr(state, slot, getattr(fresh, slot))
