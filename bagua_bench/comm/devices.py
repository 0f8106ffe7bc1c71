"""Assigns GPUs to ranks, and sets what NCCL needs if ranks share one."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

_OFF = ("NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_RAS_ENABLE")


def choose(name: str) -> torch.device:
    """The device of this rank, made current: GPUs are dealt to ranks in turn, and shared if there are too few.

    ValueError if it is `cuda` and there is none.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not (count := torch.cuda.device_count()):
            raise ValueError(f"run.device={name}: torch {torch.__version__} sees no CUDA device; allowed here: cpu")
        device = torch.device("cuda", dist.get_rank() % count)
        torch.cuda.set_device(device)
    return device


def settle(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it; over NCCL that includes what it sends."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def share(device: torch.device) -> None:
    """Let NCCL accept ranks that share a GPU; collective, and before its first group is made.

    NCCL refuses two ranks of one host on one GPU. It accepts ranks that claim hosts of their own; they reach each
    other through the network, as servers with one GPU each would.
    """
    own = torch.tensor(list(str(torch.cuda.get_device_properties(device).uuid).encode()), dtype=torch.uint8)
    all_of_them = [torch.empty_like(own) for _ in range(dist.get_world_size())]  # all_gather_object would need NumPy
    dist.all_gather(all_of_them, own)
    os.environ.update(environment([bytes(gpu.tolist()).decode() for gpu in all_of_them], dist.get_rank()))


def environment(gpus: Sequence[str], rank: int) -> dict[str, str]:
    """Variables for NCCL in `rank`, where rank k computes on the GPU with the id gpus[k]; none if no GPU is shared."""
    if len(set(gpus)) == len(gpus):
        return {}
    return {"NCCL_HOSTID": f"rank{rank}", **dict.fromkeys(_OFF, "0")}
