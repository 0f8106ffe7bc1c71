"""`python -m algorithms.codecs.benchmark [MiB]`: codec speed on one thread, as a share of memcpy's."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable

import torch

from algorithms.base import Op
from algorithms.codecs.minmax_uint8 import MinMaxUInt8

_ROUNDS = 15


def measure(mebibytes: int) -> dict[str, float]:
    """Median seconds of each operation on `mebibytes` MiB of float32, taken in turn."""
    torch.set_num_threads(1)
    x = torch.randn(1, mebibytes * 2**18)
    out = torch.empty_like(x)
    codec = MinMaxUInt8()
    wire = codec.encode(x)
    pair = torch.cat([wire, wire])
    jobs: dict[str, Callable[[], object]] = {
        "memcpy": lambda: ctypes.memmove(out.data_ptr(), x.data_ptr(), x.nbytes),
        "encode": lambda: codec.encode(x, wire),
        "decode": lambda: codec.decode(wire, out),
        "reduce two": lambda: codec.reduce(pair, out[0], Op.AVG),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(_ROUNDS):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Print bytes of float32 per second and the ratio to memcpy."""
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    seconds = measure(mebibytes)
    for name, value in seconds.items():
        print(f"{name:10}  {mebibytes * 2**20 / value / 1e9:6.2f} GB/s  {seconds['memcpy'] / value:6.1%} of memcpy")


if __name__ == "__main__":
    main()
