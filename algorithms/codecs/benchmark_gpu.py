"""`python -m algorithms.codecs.benchmark_gpu [MiB ...]`: codec speed on the GPU, as a share of a copy inside it.

Not yet run on a GPU. Seconds are those of the GPU between two CUDA events, over a captured graph of several calls, so
that launching from Python does not count; `launched` is one call after the other without a graph.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch

from algorithms.base import Op
from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.codecs.one_bit import OneBit

_ROUNDS, _CALLS = 9, 10
Job = tuple[str, int, Callable[[], object]]


def measure(mebibytes: int) -> list[dict[str, float | str]]:
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


def main() -> None:
    """Print bytes moved per second and the share of a copy's."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for mebibytes in [int(text) for text in sys.argv[1:]] or [64, 128, 256]:
        for row in measure(mebibytes):
            print(
                f"{mebibytes:4} MiB  {row['operation']:24}  {float(row['bytes_per_second']) / 1e9:8.1f} GB/s"
                f"  {float(row['of_copy']):6.1%} of copy  {float(row['seconds']) * 1e6:8.1f} us"
                f"  {float(row['launched']) * 1e6:8.1f} us launched"
            )


if __name__ == "__main__":
    main()
