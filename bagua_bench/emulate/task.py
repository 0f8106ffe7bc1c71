"""A task whose model only takes time: what `mode=emulate` trains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from bagua_bench.emulate.model import EmulatedModel, Pace
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.loads import Uneven
from tasks.base import Batch, Task


class EmulatedTask(Task):
    """A task with an `EmulatedModel`; there is no data and nothing is learned.

    uneven: the task whose batches differ in work; computing takes time in proportion.
    """

    synthetic = True

    def __init__(
        self, batch: int, layers: Layers, pace: Pace, device: str = "cpu", uneven: Uneven | None = None
    ) -> None:
        self.layers, self._pace, self._device, self._uneven = layers, pace, device, uneven
        self.batch = batch
        self.samples_per_epoch = layers.samples_per_epoch

    def model(self) -> nn.Module:
        return EmulatedModel(self.layers, self._pace, self._device)

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self.layers.optimizer.startswith("Adam"):
            return Adam(model.parameters(), lr=1e-9, foreach=False)
        return SGD(model.parameters(), lr=1e-9, momentum=0.9 * ("momentum" in self.layers.optimizer), foreach=False)

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        """Batches of no data but their load: (batch,), all the same."""
        work = self.work(size, seed)
        if work is None:
            while True:
                yield (torch.ones(self.batch),)
        for loads in work:
            yield (torch.full((self.batch,), loads[rank], dtype=torch.float64),)

    def work(self, size: int, seed: int) -> Iterator[tuple[float, ...]] | None:
        return None if self._uneven is None else self._uneven.work(size, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self._pace.carry(float(batch[0][0]))
        loss: Tensor = model(batch[0])
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}
