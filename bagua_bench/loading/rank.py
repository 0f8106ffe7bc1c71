"""One process of `bagua-bench loading cache`: `python -m bagua_bench.loading.rank FOLDER RANK`.

It loads the epochs that FOLDER/request.json asks for, side by side with the other ranks, and writes FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch.distributed as dist

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from tasks.base import Batch, Task


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    request = json.loads((folder / "request.json").read_text())
    cell = Cell.from_json(request["cell"])
    size = cell.cluster.ranks
    dist.init_process_group("gloo", init_method=f"file://{folder.resolve() / 'meeting'}", rank=rank, world_size=size)
    task: Task = build(cell.task.target, {**cell.task.options, "cache": request["cache"]})
    steps = task.samples_per_epoch // (size * task.batch)
    batches = task.batches(rank, size, cell.run.seed)
    seconds = [_epoch(batches, steps) for _ in range(request["epochs"])]
    (folder / f"{rank}.json").write_text(json.dumps({"seconds": seconds, "steps": steps}))
    dist.barrier()
    dist.destroy_process_group()


def _epoch(batches: Iterator[Batch], steps: int) -> float:
    """Seconds that this rank's share of an epoch takes; all begin at once."""
    dist.barrier()
    began = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
