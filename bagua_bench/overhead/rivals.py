"""Systems under comparison in one process: the same model and data, each with a trainer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.engine.trainer import Trainer
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.loop import Loop
from tasks.base import Batch, Task

_WARM_UP = 3  # steps; DDP makes its buckets anew after the first
_CPU = torch.device("cpu")


class Supply:
    """A cell's task and one rank's data, from which the first batch has been taken."""

    def __init__(self, cell: Cell, rank: int, ranks: int) -> None:
        self.task: Task = build(cell.task.target, cell.task.options)
        self.batches: Iterator[Batch] = self.task.batches(rank, ranks, cell.run.seed)
        next(self.batches)
        self._seed = cell.run.seed

    def model(self) -> nn.Module:
        """A new model, the same on every rank."""
        torch.manual_seed(self._seed)
        return self.task.model()


class Rival:
    """One system, which takes its steps when it is told to."""

    def __init__(self, cell: Cell, supply: Supply, trainer: Trainer) -> None:
        self.trainer, self._batches = trainer, supply.batches
        self._loop = Loop(trainer, supply.task, _CPU, cell.run.accumulate, lambda *_: None)

    def step(self) -> float:
        """Take a step, at the same time as the other ranks; return its seconds."""
        dist.barrier()
        return self._loop.take(self._batches, 1, "timed")[0][0]["step"]


@contextmanager
def rival(cell: Cell, supply: Supply, model: nn.Module, comm: TorchComm) -> Iterator[Rival]:
    """A context in which a system trains the model; collective. Leaving it ends the system."""
    with make_trainer(cell, model, supply.task.optimizer(model), comm) as trainer:
        yield Rival(cell, supply, trainer)


def alternate(cells: Sequence[Cell], comm: TorchComm, rounds: int) -> list[list[float]]:
    """Seconds of a step of every cell, by round; a cell that occurs twice is two systems. Collective.

    In every round each takes one step, in an order drawn for the round. So whatever slows the machine down for a
    while slows down all of them, and none always follows the same other one.
    """
    drawn = np.random.default_rng(cells[0].run.seed)
    with ExitStack() as stack:
        supplies = [Supply(cell, comm.rank, comm.size) for cell in cells]
        pairs = zip(cells, supplies, strict=True)
        rivals = [stack.enter_context(rival(cell, supply, supply.model(), comm)) for cell, supply in pairs]
        for each in rivals:
            for _ in range(_WARM_UP):
                each.step()
        taken = []
        for _ in range(rounds):
            seconds = dict.fromkeys(range(len(rivals)), 0.0)
            for k in drawn.permutation(len(rivals)):
                seconds[int(k)] = rivals[k].step()
            taken.append(list(seconds.values()))
        return taken
