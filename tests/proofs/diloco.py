"""DiLoCo (Douillard et al., 2023): an outer optimizer on what `interval` local steps have moved; state of two kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, Op, Turn, When


class DiLoCo(Algorithm):
    """Every `interval` steps d = theta - mean x; theta takes a Nesterov step along d, and all x become theta."""

    when, gradients, consensus = When.STEP, False, 0.75
    carry = {"theta": Carry.KEEP, "momentum": Carry.KEEP}  # noqa: RUF012

    def __init__(self, interval: int = 4, lr: float = 0.7, momentum: float = 0.9) -> None:
        self.interval, self.lr, self.momentum = interval, lr, momentum

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state = {"theta": bucket.weight.clone(), "momentum": torch.zeros_like(bucket.weight)}

    def turns(self, step: int) -> Sequence[Turn]:
        return () if step % self.interval else (Turn(When.STEP),)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        d = bucket.state["theta"] - bucket.weight
        comm.all_reduce(d, Op.AVG)
        bucket.weight.copy_(outer_step(bucket, d, self.lr, self.momentum))

    def settle(self, buckets: Sequence[Bucket], comm: Comm) -> None:
        for bucket in buckets:
            bucket.weight.copy_(bucket.state["theta"])


def outer_step(bucket: Bucket, d: torch.Tensor, lr: float, momentum: float) -> torch.Tensor:
    """SGD with Nesterov momentum, as torch defines it; the new theta."""
    m = bucket.state["momentum"].mul_(momentum).add_(d)
    return bucket.state["theta"].sub_(d.add_(m, alpha=momentum), alpha=lr)
