"""`python -m bagua_bench.transport check-gpu`: NCCL over the plugin with two ranks on one GPU. Not yet run on one."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bagua_bench.processes import together
from bagua_bench.processes.together import PartFailed
from bagua_bench.transport import environment

_LIMIT = 300.0  # seconds; a rank that lost the other one would wait for ten minutes
_RANK = """
import os, sys, torch, torch.distributed as dist
from bagua_bench.training import devices
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
os.environ.update(devices.environment(["the same"] * 2, rank))
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
    """0 if all_reduce is right from 8 B to 256 MiB over 20 communicators and NCCL's log names the plugin.

    2 without a GPU. Needs torch and this repository alone.
    """
    import torch

    if not torch.cuda.is_available():
        print("check-gpu: torch.cuda.is_available() is False; this check needs an NVIDIA GPU and a CUDA build of torch")
        return 2
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        ranks = [["-c", _RANK, str(rank), str(folder / "store")] for rank in range(2)]
        try:
            logs = together.run(ranks, folder, _LIMIT, {**environment.for_nccl(streams), "NCCL_DEBUG": "INFO"})
        except (PartFailed, RuntimeError) as error:
            print("\n".join(getattr(error, "logs", [])), f"check-gpu: {error}", sep="\n", file=sys.stderr)
            return 1
    seen = all(f"via NET/{environment.NCCL_NAME}" in log for log in logs)
    print(f"check-gpu: all_reduce correct, plugin {'in use' if seen else 'NOT USED'}")
    if not seen:
        print("\n".join(logs)[-5000:])
    return 0 if seen else 1
