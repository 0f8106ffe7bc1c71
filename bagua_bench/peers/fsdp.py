"""PyTorch's FSDP2, `fully_shard`: parameters, gradients and optimizer state are divided among the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.trainer import Trainer
from bagua_bench.peers.base import Peer, PeerTrainer


class FSDP2(Peer):
    """Every element of a list of layers is a unit, and so is the rest, as PyTorch's documentation advises.

    reshard_after_forward: free a unit's weights after its forward pass and gather them again for the backward pass;
    None, PyTorch's default: of all units but the rest. On CPUs FSDP waits for its collectives inside the passes.
    """

    def __init__(self, reshard_after_forward: bool | None = None) -> None:
        self._reshard = reshard_after_forward

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "FSDP2 runs on a torch process group"
        return FSDPTrainer(model, optimizer, comm, self._reshard)


class FSDPTrainer(PeerTrainer):
    """The model stays the same object; its parameters are DTensors, whole ones while it is paused."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, reshard: bool | None) -> None:
        self.module = self.model = model
        self.optimizer, self._comm = optimizer, comm
        names = {p: name for name, p in model.named_parameters()}
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, group=comm.group, group_src=0)
        inner = units(model)
        self._shards = _shard([*inner, model], comm, reshard)
        sharded = dict(model.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [sharded[names[p]] for p in group["params"]]
            group |= {"fused": False} if "fused" in group else {}  # DTensors have no fused kernels on CPUs
        total = sum(map(_part, model.parameters()))
        of_units = sum(_part(p) for unit in inner for p in unit.parameters())
        again = {None: of_units, True: total, False: 0}[reshard]
        # gloo's reduce-scatter sends what an all-reduce does
        reduce = traffic.all_reduce if dist.get_backend(comm.group) == "gloo" else traffic.reduce_scatter
        self._gathered = traffic.all_gather(total + again, comm.size)
        self._scattered = reduce(total * comm.size, comm.size)
        self._hook = model.register_forward_pre_hook(self._forward_begins)

    def _forward_begins(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._sent += self._gathered  # its backward pass gathers once more

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        root = self._shards[-1]
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def synchronize(self) -> None:
        self._sent += self._scattered
        if self.scale is None:
            return
        self.scale.unscale([p.grad.to_local() for p in self.model.parameters() if isinstance(p.grad, DTensor)])
        dist.all_reduce(self.scale.overflow, dist.ReduceOp.MAX, self._comm.group)  # each rank has another part

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The model's parameters are whole inside; changes of them are lost, those of its state dict stay."""
        for shard in self._shards:
            shard.unshard()
        try:
            yield
        finally:
            for shard in self._shards:
                shard.reshard()

    def close(self, failed: bool = False) -> None:
        self._hook.remove()


def _shard(modules: list[nn.Module], comm: TorchComm, reshard: bool | None) -> list[FSDPModule]:
    """Divide the parameters of each module that are not divided yet."""
    mesh = DeviceMesh.from_group(comm.group, next(modules[-1].parameters()).device.type)
    return [fully_shard(module, mesh=mesh, reshard_after_forward=reshard) for module in modules]


def units(model: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters that are elements of a list or a sequence, which names them by number."""
    found: list[nn.Module] = []
    for name, child in model.named_children():
        if any(True for _ in child.parameters()):
            is_list = isinstance(child, nn.ModuleList)  # it is never called
            found += [child] if name.isdigit() and not is_list else units(child)
    return found


def _part(p: nn.Parameter) -> int:
    """Bytes of one rank's part of a parameter, which is padded to that of the first rank."""
    assert isinstance(p, DTensor)
    return -(-p.shape[0] // p.device_mesh.size()) * (p.numel() // p.shape[0]) * p.itemsize
