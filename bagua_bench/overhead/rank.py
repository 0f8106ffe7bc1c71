"""One process of `bagua-bench overhead`: `python -m bagua_bench.overhead.rank FOLDER RANK` writes FOLDER/RANK.json.

FOLDER/request.json has the `part`, the `cells`, the number of `ranks` and of `rounds`; of the part optimizer the names
of the `optimizers` and the number of `threads`, too.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.overhead import optimizers, rivals, room

_TIMEOUT = 60.0  # seconds without progress of communication


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    request = json.loads((folder / "request.json").read_text())
    cells = [Cell.from_json(cell) for cell in request["cells"]]
    found: Any
    if request["part"] == "optimizer":
        torch.set_num_threads(request["threads"])
        found = optimizers.alternate(cells, request["optimizers"], request["rounds"])
    elif request["part"] == "alone":
        found = room.alone(cells[0], cells[1])
    else:
        meeting, limit = f"file://{folder.resolve() / 'meeting'}", timedelta(seconds=_TIMEOUT)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=request["ranks"], timeout=limit)
        comm = TorchComm.create("gloo", _TIMEOUT)
        if request["part"] == "time":
            found = rivals.alternate(cells, comm, request["rounds"])
        else:
            found = room.taken(cells[0], cells[1], comm)
        dist.barrier()
        dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
