"""`python -m algorithms.codecs.benchmark_gpu [--json FILE] [MiB ...]`: codec speed, as a share of a copy on the GPU.

Seconds are those of the GPU between two CUDA events, over a captured graph of several calls, so that launching from
Python does not count; `launched` is one call after the other without a graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from algorithms.base import Op
from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.codecs.one_bit import OneBit

_ROUNDS, _CALLS = 9, 10
Job = tuple[str, int, Callable[[], object]]


def measure(mebibytes: int) -> list[dict[str, Any]]:
    """Every operation on `mebibytes` MiB of float32, taken in turn; medians over rounds.

    `of_copy`: bytes that the operation has to move per second, over those of a copy (which reads and writes all).
    """
    jobs = _jobs(mebibytes * 2**18)
    graphs = [_captured(job) for _, _, job in jobs]
    seconds: list[list[float]] = [[] for _ in jobs]
    launched: list[list[float]] = [[] for _ in jobs]
    for _ in range(_ROUNDS):
        for k, (_, _, job) in enumerate(jobs):
            seconds[k].append(_timed(graphs[k].replay))
            launched[k].append(_timed(lambda job=job: [job() for _ in range(_CALLS)]))  # type: ignore[misc]
    copied = jobs[0][1] / statistics.median(seconds[0])
    return [
        {
            "operation": name,
            "mebibytes": float(mebibytes),
            "seconds": statistics.median(own),
            "launched": statistics.median(with_launch),
            "bytes_per_second": moved / statistics.median(own),
            "of_copy": moved / statistics.median(own) / copied,
        }
        for (name, moved, _), own, with_launch in zip(jobs, seconds, launched, strict=True)
    ]


def _jobs(elements: int) -> list[Job]:
    """Name, bytes that have to be read and written (encoding reads its input twice), and what to call."""
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(1, elements, device="cuda", generator=generator)
    out, error, size = torch.empty_like(x), torch.zeros_like(x), x.nbytes
    minmax, one_bit = MinMaxUInt8(), OneBit()
    byte, bit = minmax.encode(x), one_bit.encode(x, error=error)
    two_bytes, two_bits = torch.cat([byte, byte]), torch.cat([bit, bit])
    return [
        ("copy", 2 * size, lambda: out.copy_(x)),
        ("minmax_uint8 encode", 2 * size + byte.nbytes, lambda: minmax.encode(x, byte)),
        ("minmax_uint8 decode", size + byte.nbytes, lambda: minmax.decode(byte, out)),
        ("minmax_uint8 reduce two", size + two_bytes.nbytes, lambda: minmax.reduce(two_bytes, out[0], Op.AVG)),
        ("one_bit encode, feedback", 5 * size + bit.nbytes, lambda: one_bit.encode(x, bit, error=error)),
        ("one_bit decode", size + bit.nbytes, lambda: one_bit.decode(bit, out)),
        ("one_bit reduce two", size + two_bits.nbytes, lambda: one_bit.reduce(two_bits, out[0], Op.AVG)),
    ]


def _captured(job: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of several calls of a job; kernels are compiled by a first call outside it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        job()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            job()
    return graph


def _timed(calls: Callable[[], object]) -> float:
    """GPU seconds of one of `_CALLS` calls."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    calls()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _CALLS


def differences(elements: int) -> list[str]:
    """The random data that the GPU codes unlike the CPU; nothing, if all is well."""
    found = []
    for name, codec in (("minmax_uint8", MinMaxUInt8()), ("one_bit", OneBit())):
        x = torch.randn(3, elements, generator=torch.Generator().manual_seed(2))
        wire = codec.encode(x, torch.zeros_like(codec.room(x)))
        other = codec.encode(x.cuda(), torch.zeros_like(wire, device="cuda"))
        out, there = torch.empty_like(x), torch.empty_like(x, device="cuda")
        codec.decode(wire, out)
        codec.decode(wire.cuda(), there)
        total, sums = torch.empty_like(x[0]), torch.empty_like(there[0])
        codec.reduce(wire, total, Op.AVG)
        codec.reduce(wire.cuda(), sums, Op.AVG)
        pairs = {"encode": (wire, other), "decode": (out, there), "reduce": (total, sums)}
        found += [f"{name} {what}" for what, (a, b) in pairs.items() if not torch.equal(a, b.cpu())]
    return found


def main() -> None:
    """Print bytes moved per second, the share of a copy's, and whether all is as on the CPU (exit code 1 if not)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mebibytes", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    unlike = [f"{elements} elements: {what}" for elements in (1, 4097, 3_000_000) for what in differences(elements)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = [row for mebibytes in options.mebibytes for row in measure(mebibytes)]
    for row in rows:
        print(
            f"{row['mebibytes']:4.0f} MiB  {row['operation']:24}  {row['bytes_per_second'] / 1e9:8.1f} GB/s"
            f"  {row['of_copy']:6.1%} of copy  {row['seconds'] * 1e6:8.1f} us  {row['launched'] * 1e6:8.1f} us launched"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows))
    if unlike:
        sys.exit(f"Error: the GPU's result is not the CPU's: {'; '.join(unlike)}")
    print("equal to the CPU bit for bit")


if __name__ == "__main__":
    main()
