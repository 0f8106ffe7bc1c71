"""Which rank of how many a sampler is for."""

from __future__ import annotations

import torch.distributed as dist


def place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Number of ranks and this one, of the default process group where they are None. ValueError if they do not fit."""
    ranks = dist.get_world_size() if num_replicas is None else num_replicas
    own = dist.get_rank() if rank is None else rank
    if ranks < 1:
        raise ValueError(f"num_replicas={num_replicas}: must be at least 1")
    if not 0 <= own < ranks:
        raise ValueError(f"rank={rank}: allowed: 0 to {ranks - 1}")
    return ranks, own
