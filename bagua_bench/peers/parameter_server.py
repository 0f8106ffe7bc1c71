"""A parameter server with BytePS's schedule, our own implementation: BytePS itself runs on no current torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from algorithms.base import Least
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.lanes import ThreadLane
from bagua_bench.engine.trainer import Trainer
from bagua_bench.peers.base import PeerTrainer
from bagua_bench.peers.byteps import BytePS
from bagua_bench.peers.push_pull import Shares, parts_of


class ParameterServer(BytePS):
    """Every machine has one worker, which pushes partitions of gradients and pulls their means, and one server.

    Gradients are summed inside a machine first. A partition belongs to one server, which adds up what all workers push
    and sends each the mean. Of the partitions that are ready, that of the layer that the next forward pass needs first
    goes first; at most `credit` of them are under way to each server. Source: Jiang et al. 2020; Peng et al. 2019
    (priorities and credit). A step ends when everything is pulled, as with `DistributedOptimizer` of BytePS.

    own_machines: how many machines of the cluster, the last ones, only serve; with 0 every worker is a server, too.
    """

    by_tag = True
    """It needs messages that are matched by their tags, whatever their order."""
    simulated_with: ClassVar = {"own_machines": 0}
    """Values of options without which it cannot be simulated."""

    def __init__(
        self,
        partition: str = "4MiB",
        credit: Annotated[int, Least(1)] = 4,
        own_machines: Annotated[int, Least(0)] = 0,
    ) -> None:
        super().__init__(partition)
        self._credit, self._own = credit, own_machines

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        assert isinstance(comm, TorchComm), "the parameter server runs on a torch process group"
        return ParameterServerTrainer(model, optimizer, comm, self._partition, self._credit, self._own)


class ParameterServerTrainer(PeerTrainer):
    """Pushes the gradient of a layer once its backward pass is over; on a machine that only serves, does that."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, partition: int, credit: int, own: int = 0
    ) -> None:
        self.module = self.model = model
        self.optimizer = optimizer
        for tensor in model.state_dict().values():
            comm.broadcast(tensor)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._local = comm.intra
        leaders = comm if self._local is None else comm.inter  # None on ranks that lead no machine
        each = self._local.size if self._local else 1
        self._machines = comm.size // each - own
        self.trains = comm.rank < self._machines * each
        self._shares: Shares | None = None
        if isinstance(leaders, TorchComm) and leaders.size > 1:
            servers = range(self._machines if own else 0, leaders.size)
            parts = parts_of(self._trained, partition, servers)
            over = self._machines * each
            self._shares = Shares(leaders.another(), parts, self._trained, credit, over, self._machines, servers)
        self._lane = ThreadLane()
        self._ready, self._front, self._pushes = set[int](), len(self._trained) - 1, True
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._gradient_ready, i)) for i, p in enumerate(self._trained)
        ]

    # -- a step -----------------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._pushes = False
        try:
            yield
        finally:
            self._pushes = True

    def _gradient_ready(self, position: int, _: Tensor) -> None:
        if self._pushes:
            self._ready.add(position)
            self._submit()

    def _submit(self) -> None:
        """Hand over what is ready, in an order that is the same on all ranks: sums inside a machine are collective."""
        while self._front in self._ready:
            self._lane.submit(partial(self._push, self._front))
            self._front -= 1

    def _push(self, position: int) -> None:
        p = self._trained[position]
        assert p.grad is not None
        if not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        gradient = p.grad.view(-1)
        if self._local is not None:
            self._local.reduce(gradient, 0)
        if self._shares is not None:
            self._shares.push(position, gradient)

    def synchronize(self) -> None:
        if self.trains:
            self._exchange()
        elif self._shares is not None:
            self._shares.wait()

    def optimize(self) -> None:
        if self.trains:
            super().optimize()

    def _exchange(self) -> None:
        for position, p in enumerate(self._trained):
            if position not in self._ready:  # no part of this step's graph
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self._ready.add(position)
        self._submit()
        self._lane.wait()
        if self._shares is not None:
            self._shares.wait()
        for p in reversed(self._trained if self._local is not None else []):
            assert p.grad is not None and self._local is not None
            if self._shares is None and self._machines == 1:
                p.grad.div_(self._local.size)
            self._local.broadcast(p.grad.view(-1), 0)
        self._ready.clear()
        self._front = len(self._trained) - 1
        self._unscale_own()

    def sent(self) -> dict[str, float]:
        between = 0.0 if self._shares is None else self._shares.sent
        if self._local is None:
            return {"flat": between, "intra": 0.0, "inter": 0.0}
        return {"flat": 0.0, "intra": self._local.sent["flat"], "inter": between}

    def close(self, failed: bool = False) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._shares is not None:
            self._shares.close(failed)
        self._lane.close()
