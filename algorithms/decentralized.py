"""Average the model with one peer, or all, beside the backward pass (docs/algorithms.md, Decentralized SGD)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Comm, Least, Turn, When
from algorithms.primitives import c_fp_s, d_fp_s
from algorithms.topology import shift_one


class Decentralized(Algorithm):
    """x_i <- mean of x_i and its peer's x, minus the optimizer's step for the gradient at the old x_i.

    peers: "shift_one", one peer that changes with every exchange (of an odd number one rank has none), or "all";
    interval: steps per exchange.
    """

    when = When.FORWARD
    gradients = False
    one_bucket = True
    consensus = 0.75

    def __init__(
        self,
        peers: Literal["shift_one", "all"] = "shift_one",
        interval: Annotated[int, Least(1)] = 1,
        hierarchical: bool = True,
    ) -> None:
        self.peers = peers
        self.interval = interval
        self.hierarchical = hierarchical
        self.averaged: dict[str, Tensor] = {}

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        self.averaged = {bucket.name: torch.empty_like(bucket.weight) for bucket in buckets}

    def turns(self, step: int) -> Sequence[Turn]:
        return () if (step - 1) % self.interval else (Turn(self.when),)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        averaged = self.averaged[bucket.name]
        if self.peers == "shift_one":
            exchange = (step - 1) // self.interval
            d_fp_s(bucket.weight, averaged, comm, partial(shift_one, exchange), hierarchical=self.hierarchical)
        else:
            c_fp_s(averaged.copy_(bucket.weight), comm, hierarchical=self.hierarchical)

    def finish(self, bucket: Bucket, step: int) -> None:
        bucket.weight.copy_(self.averaged[bucket.name])
