"""Streaming DiLoCo (Douillard et al., 2025): its own fragments, some buckets a step, which land steps later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, Op, Turn, When
from tests.proofs.diloco import outer_step


class StreamingDiLoCo(Algorithm):
    """Fragment p is sent after step (p + 1) H / P of every H; `delay` steps later x <- keep x + (1 - keep) theta."""

    gradients, consensus = False, 0.75
    carry = {"theta": Carry.KEEP, "momentum": Carry.KEEP, "moved": Carry.ZERO}  # noqa: RUF012

    def __init__(self, fragments: int = 2, interval: int = 4, delay: int = 3, keep: float = 0.5) -> None:
        self.fragments, self.every, self.delay, self.keep = fragments, interval // fragments, delay, keep

    def partition(self, params: Sequence[Parameter]) -> Sequence[Sequence[Parameter]]:
        return [params[p :: self.fragments] for p in range(self.fragments)]

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state = {"theta": bucket.weight.clone()}
            bucket.state |= {name: torch.zeros_like(bucket.weight) for name in ("momentum", "moved")}

    def turns(self, step: int) -> Sequence[Turn]:
        number, rest = divmod(step, self.every)
        return () if rest else (Turn(When.STEP, buckets=((number - 1) % self.fragments,), land=self.delay),)

    def prepare(self, bucket: Bucket, step: int) -> None:
        torch.sub(bucket.state["theta"], bucket.weight, out=bucket.state["moved"])

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        comm.all_reduce(bucket.state["moved"], Op.AVG)

    def finish(self, bucket: Bucket, step: int) -> None:
        theta = outer_step(bucket, bucket.state["moved"], 0.7, 0.9)
        bucket.weight.lerp_(theta, 1 - self.keep)
