"""One rank of `check-gpu`: `python -m bagua_bench.gpu.rank PART SIZE DEVICE FOLDER RANK` writes FOLDER/RANK.pt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bagua_bench.comm import devices
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.gpu import cases, loss, parity
from bagua_bench.transport import abi, environment

_TIMEOUT = 45.0  # seconds; shorter than a part's limit, so a rank itself says what it waits for
_SHORT = {"lost": 10.0}  # where it has to pass

PARTS: dict[str, Callable[[TorchComm, torch.device], Any]] = {
    "algorithms": cases.everything,
    "parity": parity.with_ddp,
    "overhead": parity.with_plain_torch,
    "lost": loss.of_the_last_rank,
}


def main() -> None:
    part, size, name, folder, rank = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), int(sys.argv[5])
    meeting, timeout = f"file://{folder.resolve() / 'meeting'}", _SHORT.get(part, _TIMEOUT)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=limit)
    device = devices.choose(name)
    if device.type == "cuda":
        devices.share(device)
    comm = TorchComm.create("nccl" if device.type == "cuda" else "gloo", timeout, 2 if size == 4 else 1)
    result = PARTS[part](comm, device)
    torch.save({"result": result, "carried": _carried()}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _carried() -> int:
    """Bytes that NCCL sent through Bagua-Net's plugin, by its own count."""
    if os.environ.get("NCCL_NET") != environment.NCCL_NAME:
        return 0
    return int(sum(stream["bytes_sent"] for streams in abi.report_plugin().values() for stream in streams))


if __name__ == "__main__":
    main()
