"""One of the two ranks of `bagua_bench.transport check-gpu`: `gpu_rank RANK STORE`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from bagua_bench.comm import devices

_LIVES = 20  # communicators, one after the other
_ALL_SIZES, _SOME_SIZES = range(3, 29), (3, 20)  # powers of two, bytes; all of them in the first life


def main(rank: int, store: str) -> None:
    """all_reduce in both types; AssertionError names the first result that is wrong."""
    os.environ.update(devices.environment(["the same"] * 2, rank))
    torch.cuda.set_device(0)
    shared = dist.FileStore(store, 2)  # type: ignore[attr-defined]
    for life in range(_LIVES):
        own = dist.PrefixStore(str(life), shared)  # type: ignore[attr-defined]
        dist.init_process_group("nccl", store=own, rank=rank, world_size=2)
        for dtype in (torch.float32, torch.bfloat16):
            for power in _ALL_SIZES if life == 0 else _SOME_SIZES:
                x = torch.full((2**power // dtype.itemsize,), float(rank + 1), dtype=dtype, device="cuda")
                dist.all_reduce(x)
                assert (x == 3).all(), f"all_reduce of 2^{power} bytes of {dtype} is wrong in communicator {life}"
        dist.destroy_process_group()
    print(f"all_reduce correct, {_LIVES} communicators")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
