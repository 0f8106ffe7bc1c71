"""What a training task is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]
"""What one rank trains on in one step; the first dimension of every tensor is the samples."""


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

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the model, initialised from torch's global generator."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the task's recipe."""

    @abstractmethod
    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        """Endless CPU batches of rank's share of the data; a function of its arguments alone."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of the batch, a scalar; batch and model are on one device."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data, higher or lower is better as their names say; restores the training mode."""
