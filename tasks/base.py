"""What a training task is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]
"""What one rank trains on in one step; the first dimension of every tensor is the samples."""


@dataclass(frozen=True)
class Position:
    """How far training has come in its data: the first `seen` samples of `epoch`'s order, by all ranks together."""

    epoch: int = 0
    seen: int = 0

    def after(self, number: int, total: int) -> Position:
        """After `number` more samples, all of one epoch of `total`: of the next one if fewer are left of this."""
        if number > total:
            raise ValueError(f"number={number}: an epoch has {total} samples")
        here = self if total - self.seen >= number else Position(self.epoch + 1)
        return Position(here.epoch, here.seen + number)


class Task(ABC):
    """A model with its data, loss and metric. Constructor arguments are the keys of `conf/task/<name>.yaml`.

    `scale` is one of paper (the published model and input), cpu (the same parameters, small input) and tiny (a
    small model as well, for tests).
    """

    batch: int
    """Samples per rank and step."""
    synthetic: bool
    """Whether the data is generated."""
    samples_per_epoch: int
    sync_bn: bool = False
    """Whether batch norms take their statistics over the batches of all ranks."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the model, initialised from torch's global generator."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the task's recipe."""

    @abstractmethod
    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        """Endless CPU batches of rank's share of the data; a function of its arguments alone."""

    def resumed(self, rank: int, size: int, seed: int, begin: Position) -> Iterator[Batch]:
        """`batches` from a position on, for elastic training.

        The k-th batches of all ranks are the next size x batch samples behind the position; an epoch ends where fewer
        than that are left (`Position.after`).
        """
        raise NotImplementedError(f"{type(self).__name__}.resumed: this task cannot begin in mid-epoch")

    def typical(self) -> Batch:
        """A batch of the work that a step is said to take; what `work` is relative to."""
        return next(self.batches(0, 1, 0))

    def work(self, size: int, seed: int) -> Iterator[tuple[float, ...]] | None:
        """The work of forward and backward on every rank's batch, one entry per rank, batch after batch.

        A `typical` batch is 1. None: all batches are alike.
        """
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of the batch, a scalar; batch and model are on one device."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data, higher or lower is better as their names say; restores the training mode."""
