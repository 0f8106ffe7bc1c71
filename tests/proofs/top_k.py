"""Top-k with error feedback (Stich et al., NeurIPS 2018): the k largest of a bucket, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm


class TopK(Algorithm):
    """c = g + e; every rank sends the k largest |c|; e keeps the rest; g becomes the mean of what all sent."""

    carry = {"error": Carry.AVERAGE}  # noqa: RUF012

    def __init__(self, k: int = 2) -> None:
        self.k = k

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state = {"error": torch.zeros_like(bucket.grad)}

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        e = bucket.state["error"].add_(bucket.grad)
        chosen = e[: bucket.elements].abs().topk(min(self.k, bucket.elements)).indices
        values = e[chosen]
        e[chosen] = 0
        indices, everyone = comm.gather_ragged(chosen), comm.gather_ragged(values)
        bucket.grad.zero_()
        for where, what in zip(indices, everyone, strict=True):
            bucket.grad.index_add_(0, where, what, alpha=1 / comm.size)
