"""Tasks in plain torch, for profiles on machines that lack the packages of the real ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.flop_counter import FlopCounterMode

from bagua_bench.gpu.models import workload
from bagua_bench.machine.layers import Layer, Layers
from bagua_bench.machine.tabulate import optimizer_traffic
from tasks.base import Batch, Task

NAMES = ("vgg16", "bert_large")


class StandIn(Task):
    """The model of `workload` on a random batch of the paper's size, with the optimizer of the task's recipe."""

    synthetic = True
    samples_per_epoch = 1

    def __init__(self, name: str, scale: str) -> None:
        self._name, self._shrink = name, 1 if scale == "paper" else 16
        self.batch = len(self._workload("meta")[1])

    def _workload(self, device: str) -> tuple[nn.Module, Tensor]:
        with torch.device(device):
            return workload(self._name, self._shrink, torch.device(device))

    def model(self) -> nn.Module:
        return self._workload("cpu")[0]

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self._name == "bert_large":
            return AdamW(model.parameters(), lr=3e-5, weight_decay=0.0, fused=True)
        return SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        batch = self._workload("cpu")[1]
        while True:
            yield (batch,)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch[0])
        return output.float().square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}

    def layers(self) -> Layers:
        """All parameters in one layer: enough to turn seconds into rates."""
        (model, batch), flops = self._workload("meta"), FlopCounterMode(display=False)
        with flops:
            self.loss(model, (batch,))
        params = tuple((name, tuple(p.shape)) for name, p in model.named_parameters())
        layer = Layer(flops.get_total_flops() // 2 // self.batch, tuple(range(len(params))))
        kind, traffic = optimizer_traffic(self.optimizer(nn.Linear(1, 1)))
        return Layers(self._name, "paper", params, (layer,), kind, traffic, self.samples_per_epoch)
