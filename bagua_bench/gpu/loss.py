"""What `check-gpu` has the ranks do to see that the loss of one ends the others."""

from __future__ import annotations

import os
import signal

import torch

from bagua_bench.comm import devices
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.gpu.verdicts import STOPS


def of_the_last_rank(comm: TorchComm, device: torch.device) -> None:
    """The last rank stops, and lives on; the others wait for it in an all-reduce, for as long as they are let."""
    numbers = torch.ones(1 << 20, device=device)
    comm.all_reduce(numbers)
    devices.settle(device)
    if comm.rank == comm.size - 1:
        print(STOPS, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(numbers)
    devices.settle(device)
