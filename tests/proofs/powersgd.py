"""PowerSGD (Vogels et al., NeurIPS 2019): needs the shapes of parameters, and state that has their own shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, Op


class PowerSGD(Algorithm):
    """Every matrix M = G + E (m, k) is averaged as P Q^T of rank `rank`; what that loses, E, is added the next time."""

    carry = {"q": Carry.KEEP, "error": Carry.AVERAGE}  # noqa: RUF012

    def __init__(self, rank: int = 2, start: str = "normal") -> None:
        self.rank, self.first = rank, start

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state["error"] = torch.zeros_like(bucket.grad)
            bucket.each["q"] = [self._q(view, number) for number, view in enumerate(bucket.views(bucket.grad))]

    def _q(self, gradient: Tensor, seed: int) -> Tensor:
        rows, columns = matrix(gradient).shape
        shape = (columns, min(rows, columns, self.rank))
        if self.first == "ones":
            return torch.ones(shape, dtype=gradient.dtype)
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(gradient)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        bucket.grad.add_(bucket.state["error"])
        errors = bucket.views(bucket.state["error"])
        for view, error, q in zip(bucket.views(bucket.grad), errors, bucket.each["q"], strict=True):
            m = matrix(view)
            p = m @ q
            comm.all_reduce(p, Op.AVG)
            p = torch.linalg.qr(p)[0]
            torch.matmul(m.T, p, out=q)
            error.copy_((m - p @ q.T).view_as(view))
            comm.all_reduce(q, Op.AVG)
            view.copy_((p @ q.T).view_as(view))


def matrix(x: Tensor) -> Tensor:
    """x as (first dimension, all others)."""
    return x.reshape(len(x), -1)
