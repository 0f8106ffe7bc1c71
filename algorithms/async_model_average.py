"""Training never waits; a background loop averages the models (docs/algorithms.md, Async model average)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.optim import Optimizer

from algorithms.base import Above, Algorithm, Bucket, Comm, Least, Turn, When
from algorithms.primitives import c_fp_s


class AsyncModelAverage(Algorithm):
    """Rounds of: snapshot c_i <- x_i; s <- sum of c; x_i <- x_i + s/n - c_i, which keeps what training did meanwhile.

    interval_ms: pause between rounds. warmup_steps: so many steps of gradient all-reduce come first.
    """

    one_bucket = True
    consensus = 1.0  # a short run may end before its first round

    def __init__(
        self, interval_ms: Annotated[float, Above(0)] = 500.0, warmup_steps: Annotated[int, Least(0)] = 0
    ) -> None:
        self.pause = interval_ms / 1e3
        self.warmup_steps = warmup_steps
        self.gradients = warmup_steps > 0
        self.snapshot: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}

    def turns(self, step: int) -> Sequence[Turn]:
        if step <= self.warmup_steps:
            return (Turn(When.BACKWARD, communicate=self.warm_up),)
        return (Turn(When.ASYNC),)

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for dtype in {bucket.weight.dtype for bucket in buckets} - {torch.float32, torch.float64}:
            raise ValueError(f"weights are {dtype}: the small updates of async get lost in it; use torch.float32")
        self.snapshot = {bucket.name: torch.empty_like(bucket.weight) for bucket in buckets}
        self.mean = {bucket.name: torch.empty_like(bucket.weight) for bucket in buckets}

    def warm_up(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_fp_s(bucket.grad, comm)

    def prepare(self, bucket: Bucket, step: int) -> None:
        self.snapshot[bucket.name].copy_(bucket.weight)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_fp_s(self.mean[bucket.name].copy_(self.snapshot[bucket.name]), comm)

    def finish(self, bucket: Bucket, step: int) -> None:
        bucket.weight.add_(self.mean[bucket.name].sub_(self.snapshot[bucket.name]))
