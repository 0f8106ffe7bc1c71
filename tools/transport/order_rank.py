"""One rank of a group whose order changes. Commands on stdin, answers on stdout, JSON lines.

`python -m tools.transport.order_rank RANK SIZE STORE_HOST STORE_PORT`
"""

from __future__ import annotations

import array
import json
import sys
import time
from typing import Any

from torch._C._distributed_c10d import TCPStore

from bagua_bench.transport import order
from bagua_bench.transport.native import Group

_LIMIT = 120.0  # seconds
_FLOAT, _SUM = 0, 0


def main() -> None:
    """Connect, print that it is ready, then serve {"survey": true}, {"settle": true} and {"ranks": [...], "ring":
    false, "tree": null, "bytes": n, "untimed": j, "repeat": k}, all-reduces in an order."""
    rank, size, host, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    store = TCPStore(host, port, size, is_master=rank == 0)
    group = Group(rank, size)
    store.set(f"{rank}", group.handle.hex())
    group.join([bytes.fromhex(store.get(f"{other}").decode()) for other in range(size)], _LIMIT)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(group, json.loads(line))), flush=True)


def _answer(group: Group, asked: dict[str, Any]) -> dict[str, Any]:
    if "survey" in asked:
        began = time.monotonic()
        rates = order.survey(group, _LIMIT)
        return {"rates": rates, "seconds": time.monotonic() - began}
    if "settle" in asked:
        began = time.monotonic()
        found = order.settle(group, _LIMIT)
        assert found, "there are more than two ranks"
        seconds = time.monotonic() - began
        return {"ranks": found.used, "ring": found.ring, "tree": found.tree, "seconds": seconds}
    group.arrange(asked["ranks"], asked["ranks"], asked["ring"], asked["tree"])
    data = array.array("f", bytes(asked["bytes"]))
    address, count = data.buffer_info()
    times = []
    for number in range(asked["untimed"] + asked["repeat"]):
        began = time.monotonic()
        group.all_reduce(address, count, _FLOAT, _SUM, _LIMIT)
        if number >= asked["untimed"]:
            times.append(time.monotonic() - began)
    return {"seconds": sum(times) / len(times)}


if __name__ == "__main__":
    main()
