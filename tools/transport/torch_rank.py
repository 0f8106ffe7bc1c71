"""One rank of a comparison: bagua_net and gloo in turn. Commands on stdin, answers on stdout, JSON lines.

`python -m tools.transport.torch_rank RANK SIZE STORE_HOST STORE_PORT`
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  makes the backend known

BACKENDS = ("bagua_net", "gloo")
_SETTLE = 0.005  # seconds; gloo's thread spins for one or two milliseconds after its last message


Call = Callable[[dist.ProcessGroup], object]


def operations(elements: int, rank: int, size: int) -> dict[str, Call]:
    """Every operation on a tensor of so many elements per rank, at least `size`: what it sends, or gets, or both.

    Roots are rank 0.
    """
    x, dealt, got = torch.zeros(elements), *torch.zeros(2, elements // size * size)
    parts = [torch.zeros(elements) for _ in range(size)]
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


def main() -> None:
    """Connect, print that it is ready, then serve requests on stdin.

    A request is {"operation": name, "bytes": n, "repeat": k, "rounds": r, "warm": true}.

    In a round each backend has its turn: a barrier and a pause for the other's threads, if `warm` an operation that is
    not counted, then `repeat` operations back to back, whose mean counts. There is no pause between them, because a
    limited link saves up for a burst while it is idle, so that a backend that is slow to begin would seem fast.
    """
    rank, size, host, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    limit = timedelta(seconds=300)
    dist.init_process_group("gloo", f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=limit)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    for group in groups.values():
        dist.all_reduce(torch.ones(1 << 18), group=group)  # gloo connects when it is first used
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        call = operations(asked["bytes"] // 4, rank, size)[asked["operation"]]
        seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for number in range(asked["rounds"]):
            for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
                dist.barrier(groups["gloo"])  # a root may be ahead of the others
                time.sleep(_SETTLE)
                if asked["warm"]:
                    call(groups[backend])
                began = time.perf_counter()
                for _ in range(asked["repeat"]):
                    call(groups[backend])
                seconds[backend].append((time.perf_counter() - began) / asked["repeat"])
        streams = groups["bagua_net"].report((rank + 1) % size)
        print(json.dumps({"seconds": seconds, "streams": streams}), flush=True)


if __name__ == "__main__":
    main()
