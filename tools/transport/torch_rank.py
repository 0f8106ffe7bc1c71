"""One rank of a comparison: groups of ranks in turn. Commands on stdin, answers on stdout, JSON lines.

`python -m tools.transport.torch_rank RANK SIZE STORE_HOST STORE_PORT`
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  makes the backend known
from bagua_bench.configuration.network_shape import INT8
from bagua_bench.transport import joining

BACKENDS = ("bagua_net", "gloo")
_SETTLE = 0.005  # seconds; gloo's thread spins for one or two milliseconds after its last message


Call = Callable[[dist.ProcessGroup], object]


def _filled(*shape: int) -> torch.Tensor:
    return torch.empty(*shape).zero_()  # torch.zeros() is one page of the kernel's until it is written to


def operations(elements: int, rank: int, size: int) -> dict[str, Call]:
    """Every operation on a tensor of so many elements per rank, at least `size`: what it sends, or gets, or both.

    Roots are rank 0.
    """
    x, dealt, got = _filled(elements), *_filled(2, elements // size * size)
    parts = [_filled(elements) for _ in range(size)]
    here = parts if rank == 0 else None

    def one_way(group: dist.ProcessGroup) -> None:
        if rank < 2:
            (dist.recv if rank else dist.send)(x, 1 - rank, group=group)

    return {
        "all_reduce": lambda group: dist.all_reduce(x, group=group),
        "broadcast": lambda group: dist.broadcast(x, 0, group=group),
        "reduce": lambda group: dist.reduce(x, 0, group=group),
        "all_gather": lambda group: dist.all_gather(parts, x, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter(x, parts, group=group),
        "gather": lambda group: dist.gather(x, here, 0, group=group),
        "scatter": lambda group: dist.scatter(x, here, 0, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(got, dealt, group=group),
        "send": one_way,
    }


def _group(way: str) -> Any:  # torch's stubs do not know what a backend adds
    os.environ[joining.WIRE] = INT8 if way == INT8 else joining.EXACT
    group = dist.new_group(backend="bagua_net" if way == INT8 else way)
    dist.all_reduce(torch.ones(1 << 18), group=group)  # gloo connects when it is first used
    return group


def _error(group: dist.ProcessGroup, elements: int, rank: int, size: int) -> float:
    """Root of the mean square of a sum's errors, by that of the exact sum; of normally distributed elements."""
    parts = [torch.randn(elements, generator=torch.Generator().manual_seed(k)) for k in range(size)]
    exact = torch.stack([part.double() for part in parts]).sum(0)
    dist.all_reduce(parts[rank], group=group)
    return float((parts[rank] - exact).norm() / exact.norm())


def main() -> None:
    """Connect, print that it is ready, then serve requests on stdin.

    A request is {"operation": name, "bytes": n, "repeat": k, "rounds": r, "warm": true, "ways": [...]}; a way is one of
    BACKENDS, or INT8 over bagua_net. With "error": elements it asks for the error of a sum over each way instead.

    In a round each way has its turn: a barrier and a pause for the other's threads, if `warm` an operation that is
    not counted, then `repeat` operations back to back, whose mean counts. There is no pause between them, because a
    limited link saves up for a burst while it is idle, so that a backend that is slow to begin would seem fast.
    """
    rank, size, host, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    limit = timedelta(seconds=300)
    dist.init_process_group("gloo", f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=limit)
    groups = {way: _group(way) for way in BACKENDS}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ways = asked["ways"]
        groups |= {way: _group(way) for way in ways if way not in groups}
        if "error" in asked:
            errors = {way: _error(groups[way], asked["error"], rank, size) for way in ways}
            print(json.dumps(errors), flush=True)
            continue
        call = operations(asked["bytes"] // 4, rank, size)[asked["operation"]]
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(asked["rounds"]):
            for way in ways if number % 2 == 0 else ways[::-1]:
                dist.barrier(groups["gloo"])  # a root may be ahead of the others
                time.sleep(_SETTLE)
                if asked["warm"]:
                    call(groups[way])
                began = time.perf_counter()
                for _ in range(asked["repeat"]):
                    call(groups[way])
                seconds[way].append((time.perf_counter() - began) / asked["repeat"])
        streams = groups["bagua_net"].report((rank + 1) % size)
        print(json.dumps({"seconds": seconds, "streams": streams}), flush=True)


if __name__ == "__main__":
    main()
