"""One-peer exponential gossip (Ying et al., NeurIPS 2021): directed messages, one peer a step."""

from __future__ import annotations

import torch

from algorithms.base import Algorithm, Bucket, Comm, When


class Exponential(Algorithm):
    """After step t: x_i <- the mean of x_i and of the x that lies 2^((t - 1) mod log2 n) ranks before."""

    when, gradients, consensus = When.STEP, False, 0.75

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        rounds = max(1, (comm.size - 1).bit_length())
        offset = 2 ** ((step - 1) % rounds)
        received = torch.empty_like(bucket.weight)
        to, source = (comm.rank + offset) % comm.size, (comm.rank - offset) % comm.size
        if comm.size > 1:
            comm.send_receive([(to, bucket.weight)], [(source, received)])
            bucket.weight.add_(received).div_(2)
