"""Gradient all-reduce: synchronous data-parallel SGD in full precision (docs/algorithms.md, Gradient all-reduce)."""

from __future__ import annotations

from algorithms.base import Algorithm, Bucket, Comm
from algorithms.primitives import c_fp_s


class GradientAllReduce(Algorithm):
    """x <- optimizer(x, mean of g); with `average=False` the sum of g."""

    def __init__(self, average: bool = True, hierarchical: bool = False) -> None:
        self.average = average
        self.hierarchical = hierarchical

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_fp_s(bucket.grad, comm, average=self.average, hierarchical=self.hierarchical)
