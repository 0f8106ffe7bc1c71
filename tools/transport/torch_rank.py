"""One rank of an all-reduce comparison: bagua_net and gloo in turn. Commands on stdin, answers on stdout, JSON lines.

`python -m tools.transport.torch_rank RANK SIZE STORE_HOST STORE_PORT`
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  makes the backend known

BACKENDS = ("bagua_net", "gloo")
_SETTLE = 0.005  # seconds; gloo's thread spins for one or two milliseconds after its last message


def main() -> None:
    """Connect, print that it is ready, then serve requests on stdin: {"bytes": n, "repeat": k, "rounds": r}.

    In a round each backend has its turn: a pause for the other's threads, an operation that is not counted, then
    `repeat` operations, whose mean counts. There is no pause between them, because a limited link saves up for a burst
    while it is idle, so that a backend that is slow to begin would seem fast.
    """
    rank, size, host, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=limit)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    for group in groups.values():
        dist.all_reduce(torch.ones(1 << 18), group=group)  # gloo connects when it is first used
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        x = torch.zeros(asked["bytes"] // 4)
        seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for number in range(asked["rounds"]):
            for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
                time.sleep(_SETTLE)
                dist.all_reduce(x, group=groups[backend])
                began = time.perf_counter()
                for _ in range(asked["repeat"]):
                    dist.all_reduce(x, group=groups[backend])
                seconds[backend].append((time.perf_counter() - began) / asked["repeat"])
        streams = groups["bagua_net"].report((rank + 1) % size)
        print(json.dumps({"seconds": seconds, "streams": streams}), flush=True)


if __name__ == "__main__":
    main()
