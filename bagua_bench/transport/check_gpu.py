"""`python -m bagua_bench.transport check-gpu`: NCCL over the plugin with two ranks on one GPU."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bagua_bench.processes import together
from bagua_bench.processes.together import PartFailed
from bagua_bench.transport import environment

_LIMIT = 300.0  # seconds; a rank that lost the other one would wait for ten minutes


def run(streams: int | str) -> int:
    """0 if all_reduce is right from 8 B to 256 MiB over 20 communicators and NCCL's log names the plugin.

    2 without a GPU. Needs torch and this repository alone.
    """
    import torch

    if not torch.cuda.is_available():
        print("check-gpu: torch.cuda.is_available() is False; this check needs an NVIDIA GPU and a CUDA build of torch")
        return 2
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        ranks = [["-m", "bagua_bench.transport.gpu_rank", str(rank), str(folder / "store")] for rank in range(2)]
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
