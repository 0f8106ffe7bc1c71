"""RelaySGD (Vogels et al., NeurIPS 2021) on a chain: another message to each neighbour, as many as there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, When


class RelaySum(Algorithm):
    """To each neighbour goes x + all that came from the other side, and of how many ranks that is the sum."""

    when, gradients, consensus = When.STEP, False, 0.75
    carry = dict.fromkeys(("before", "behind", "counts"), Carry.ZERO)

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        for bucket in buckets:
            bucket.state = {side: torch.zeros_like(bucket.weight) for side in ("before", "behind")}
            bucket.state["counts"] = torch.zeros(2, dtype=bucket.weight.dtype)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        x, state = bucket.weight, bucket.state
        sums, counts = (state["before"], state["behind"]), state["counts"]
        sides = [(0, comm.rank - 1), (1, comm.rank + 1)]
        neighbours = [(side, peer) for side, peer in sides if 0 <= peer < comm.size]
        sends = [(peer, torch.cat([x + sums[1 - side], 1 + counts[1 - side].view(1)])) for side, peer in neighbours]
        received = [(peer, torch.empty_like(message)) for peer, message in sends]
        comm.send_receive(sends, received)
        for (side, _), (_, message) in zip(neighbours, received, strict=True):
            sums[side].copy_(message[:-1])
            counts[side] = message[-1]
        x.mul_(comm.size - counts.sum()).add_(sums[0]).add_(sums[1]).div_(comm.size)
