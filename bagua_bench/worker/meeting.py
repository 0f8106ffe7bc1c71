"""Where the ranks of a run meet: the store of their job, under a name of the run's own."""

from __future__ import annotations

import os
from functools import cache
from itertools import count

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bagua_bench.comm.torch_groups import init_default
from bagua_bench.elastic import MEET

_NUMBERS = count()


def join(timeout: float) -> None:
    """Make the default process group, over gloo; collective. `timeout` in seconds.

    A process may do so again after it has destroyed the group. A store remembers the addresses of the groups before,
    so every run gets a part of it for itself.
    """
    store, rank, size = job_store()
    own = PrefixStore(f"run-{next(_NUMBERS)}", store)
    init_default(own, rank, size, timeout)


@cache
def job_store() -> tuple[Store, int, int]:
    """The job's store, this rank and how many there are, from the environment.

    After a restart by torchrun it is another part of its agent's store, which remembers what was before.
    """
    store, rank, size = next(rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store, rank, size


def kept_store() -> Store:
    """The store that none of the servers keeps, for members of a run without restarts."""
    address, _, port = os.environ[MEET].rpartition("/")[0].rpartition(":")
    return TCPStore(address, int(port), is_master=False, wait_for_workers=False)


def server() -> int:
    """The number of this process's server, in a run without restarts."""
    return int(os.environ[MEET].rpartition("/")[2])
