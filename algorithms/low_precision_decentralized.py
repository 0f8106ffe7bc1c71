"""8-bit gossip of model differences on a ring (docs/algorithms.md, Low-precision decentralized SGD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, Least, Turn, When
from algorithms.codecs import MinMaxUInt8
from algorithms.primitives import d_lp_s

_REPLICAS = ("own", "left", "right")


class LowPrecisionDecentralized(Algorithm):
    """After the optimizer step each model moves to the mean of its own and its neighbours' replicas.

    interval: steps per exchange.
    """

    when = When.STEP
    gradients = False
    line_share = 0.25
    consensus = 0.75
    carry: ClassVar = dict.fromkeys(_REPLICAS, Carry.ZERO)

    def __init__(
        self,
        interval: Annotated[int, Least(1)] = 1,
        hierarchical: bool = True,
        compress_single_rank: bool = False,
    ) -> None:
        self.interval = interval
        self.hierarchical = hierarchical
        self.compress_single_rank = compress_single_rank
        self.codec = MinMaxUInt8()

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state = {name: bucket.weight.clone() for name in _REPLICAS}

    def turns(self, step: int) -> Sequence[Turn]:
        return () if (step - 1) % self.interval else (Turn(self.when),)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        own, left, right = (bucket.state[name] for name in _REPLICAS)
        d_lp_s(
            bucket.weight,
            (own, left, right),
            comm,
            self.codec,
            hierarchical=self.hierarchical,
            compress_single_rank=self.compress_single_rank,
        )
