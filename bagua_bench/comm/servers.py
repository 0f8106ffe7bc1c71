"""How many ranks each server of a job has."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from bagua_bench.comm.counted import CommError


def ranks_per_server(timeout: float) -> int:
    """What torchrun says of this server, or 1; collective over the default group. `timeout` in seconds.

    It goes through the job's store: NCCL would need to know this rank's device. ValueError if servers have unequal
    numbers, CommError if a rank is lost meanwhile.
    """
    own = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    store = PrefixStore("ranks of a server", _get_default_store())
    store.set(str(dist.get_rank()), str(own))
    everyone = [str(rank) for rank in range(dist.get_world_size())]
    try:
        store.wait(everyone, timedelta(seconds=timeout))
        sizes = sorted({int(store.get(rank)) for rank in everyone})
    except RuntimeError as error:
        raise CommError(f"store failed: {str(error).strip().splitlines()[0]}") from None
    if len(sizes) > 1:
        raise ValueError(f"LOCAL_WORLD_SIZE={own}: servers have {sizes} ranks; all need the same number")
    return own
