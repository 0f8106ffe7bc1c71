"""Where the ranks of a run meet: the store of their job, under a name of the run's own."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from itertools import count

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_NUMBERS = count()


def join(timeout: float) -> None:
    """Make the default process group, over gloo; collective. `timeout` in seconds.

    A process may do so again after it has destroyed the group. A store remembers the addresses of the groups before,
    so every run gets a part of it for itself.
    """
    store, rank, size = job_store()
    own = PrefixStore(f"run-{next(_NUMBERS)}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))


@cache
def job_store() -> tuple[Store, int, int]:
    """The job's store, this rank and how many there are, from the environment.

    After a restart by torchrun it is another part of its agent's store, which remembers what was before.
    """
    store, rank, size = next(rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store, rank, size
