"""NCCL over the plugin with two ranks on one GPU: needs a CUDA torch and at least one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bagua_bench.transport import environment

_RANK = """
import os, torch, torch.distributed as dist
rank, store = int(os.environ["RANK"]), dist.FileStore(os.environ["STORE"], 2)
torch.cuda.set_device(0)
for life in range(20):
    dist.init_process_group("nccl", store=dist.PrefixStore(str(life), store), rank=rank, world_size=2)
    for dtype in (torch.float32, torch.bfloat16):
        for power in range(3, 29) if life == 0 else (3, 20):
            x = torch.full((2**power // dtype.itemsize,), float(rank + 1), dtype=dtype, device="cuda")
            dist.all_reduce(x)
            assert (x == 3).all(), (dtype, power)
    dist.destroy_process_group()
print("all_reduce correct, 20 communicators")
"""


def run(streams: int) -> int:
    """0 if all_reduce is right from 8 B to 256 MiB over 20 communicators and NCCL's log names the plugin."""
    import torch

    if not torch.cuda.is_available():
        print("check-gpu: torch.cuda.is_available() is False; this check needs an NVIDIA GPU and a CUDA build of torch")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_start(rank, streams, Path(folder)) for rank in range(2)]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    seen = all(f"via NET/{environment.NCCL_NAME}" in output for output in outputs)
    right = all(rank.returncode == 0 for rank in ranks)
    print(f"check-gpu: all_reduce {'correct' if right else 'WRONG'}, plugin {'in use' if seen else 'NOT USED'}")
    if not (seen and right):
        print("\n".join(outputs)[-5000:])
    return 0 if seen and right else 1


def _start(rank: int, streams: int, folder: Path) -> subprocess.Popen[str]:
    variables = {
        **os.environ,
        **environment.for_nccl(streams),
        "RANK": str(rank),
        "STORE": str(folder / "store"),
        "NCCL_HOSTID": f"fake{rank}",  # two hosts for NCCL, so that all goes over the network
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    command = [sys.executable, "-c", _RANK]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
