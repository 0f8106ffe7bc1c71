"""One rank of the torch backend under outages. Commands on stdin, answers on stdout, JSON lines.

`python -m tools.transport.outage_rank RANK SIZE STORE_HOST STORE_PORT`
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  makes the backend known

STATES = ("busy", "idle", "waiting")
"""What a group does during the outage: one operation after the other, nothing, or wait for a rank that is late."""
_BUSY = 1 << 20  # elements: a broadcast of so many goes without a copy, and so with receipts


class Rank:
    """A group for every state, all with the same time-out; when their operations ended, and their errors."""

    def __init__(self, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        self._groups = {state: dist.new_group(backend="bagua_net", timeout=limit) for state in STATES}
        self._late = dist.get_rank() == 1
        self._over = threading.Event()
        self._ends: dict[str, list[float]] = {state: [] for state in STATES}
        self._errors: dict[str, str] = {}
        self._threads = [threading.Thread(target=self._caught, args=("busy", self._stay_busy))]
        for state in STATES:
            self._reduce(state, torch.ones(_BUSY))
        if not self._late:
            self._threads.append(threading.Thread(target=self._caught, args=("waiting", self._one)))

    def begin(self) -> None:
        """Be busy, and wait."""
        for thread in self._threads:
            thread.start()

    def end(self, since: float) -> dict[str, Any]:
        """Come to all operations; the first end of one in every state, in seconds after `since`, and errors."""
        self._over.set()
        self._caught("idle", self._one)
        if self._late:
            self._caught("waiting", self._one)
        for thread in self._threads:
            thread.join()
        for group in self._groups.values():
            dist.destroy_process_group(group)
        ended = {state: [t - since for t in times if t > since] for state, times in self._ends.items()}
        return {"ended": {state: min(times) for state, times in ended.items() if times}, "errors": self._errors}

    def _caught(self, state: str, call: Callable[[str], None]) -> None:
        try:
            call(state)
        except RuntimeError as error:
            self._errors[state] = str(error)

    def _one(self, state: str) -> None:
        self._reduce(state, torch.ones(1))

    def _stay_busy(self, state: str) -> None:
        """All ranks agree on the end: the one that is not late says so in the data."""
        x = torch.ones(_BUSY)
        while x[0] < 2:
            x.fill_(1 / dist.get_world_size())
            if self._over.is_set() and not self._late:
                x[0] = 2
            self._reduce(state, x)
            for root in range(dist.get_world_size()):
                dist.broadcast(x, root, group=self._groups[state])
                self._ends[state].append(time.monotonic())

    def _reduce(self, state: str, x: torch.Tensor) -> None:
        dist.all_reduce(x, group=self._groups[state])
        self._ends[state].append(time.monotonic())


def main() -> None:
    """Connect, print that it is ready, then serve {"open": TIMEOUT}, {"begin": true} and {"end": SINCE} in turn."""
    rank, size, host, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{host}:{port}", rank=rank, world_size=size)
    answer: dict[str, Any] = {"ready": True}
    one: Rank | None = None
    while True:
        print(json.dumps(answer), flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        asked, answer = json.loads(line), {}
        if "open" in asked:
            one = Rank(asked["open"])
        elif one is not None and "begin" in asked:
            one.begin()
        elif one is not None:
            answer = one.end(asked["end"])


if __name__ == "__main__":
    main()
