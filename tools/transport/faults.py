"""Random faults of peers and paths: a transfer must end in whole data, or in an error in time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.transport import shaped
from tools.transport.pair import HarnessError, Pair, Process

KINDS = ("kill sender", "kill receiver", "stop sender", "stop receiver", "reset stream", "link down")
TIMEOUT = 2.0
"""Seconds that the transport is given; its default is 10."""
_RETRY = 1.0  # seconds in which TCP tries again after an outage as long as the time-out
_SLACK = 1.0  # seconds: these machines are busy
_AT_ONCE = 1.0  # seconds within which a death that the kernel reports must be noticed


@dataclass
class Fault:
    """A fault, and the outcomes on the surviving sides."""

    kind: str
    after: float  # seconds from the start of the transfer
    results: list[int]  # NCCL's code on each surviving side; 0 is whole, verified data
    took: float  # seconds from the fault to the last answer

    @property
    def good(self) -> bool:
        """Whole data, or an error within the time-out."""
        limit = _AT_ONCE if self.kind.startswith(("kill", "reset")) else TIMEOUT + _RETRY
        return self.took <= limit + _SLACK and all(result in (0, 2, 6) for result in self.results)


def run(
    library: Path,
    plugin: Path,
    symbol: str,
    count: int,
    seed: int,
    links: bool,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Fault]:
    """`count` faults of all kinds in turn; those of the link only where namespaces can be made."""
    choice = random.Random(seed)
    kinds = [kind for kind in KINDS if links or kind != "link down"]
    with _sites(links) as (prefixes, cut, mend):
        interface = "bb0" if links else "lo"
        for number in range(count):
            limit = {"BAGUA_NET_TIMEOUT": str(TIMEOUT)}
            variables = {"NCCL_SOCKET_IFNAME": interface, **limit, **(environment or {})}
            with Pair(library, plugin, symbol, variables, prefixes) as pair:
                yield _one(pair, kinds[number % len(kinds)], choice, cut)
            mend()


@contextmanager
def _sites(links: bool) -> Iterator[tuple[tuple[Sequence[str], Sequence[str]], Any, Any]]:
    if not links:
        yield ((), ()), None, lambda: None
        return
    with shaped.pair() as (a, b):

        def link(state: str) -> None:
            subprocess.run(["ip", "-n", b.namespace, "link", "set", "bb0", state], check=True)
            if state == "up":
                shaped.await_carrier((a, b))

        yield (a.prefix, b.prefix), lambda: link("down"), lambda: link("up")


def _one(pair: Pair, kind: str, choice: random.Random, cut: Any) -> Fault:
    pair.link()
    after = choice.uniform(0, 0.3)
    if kind == "reset stream":
        side = choice.choice((pair.a, pair.b))
        side.ask("cut_later", seconds=after, index=choice.randrange(4))
    plan = {"size": 2_000_000, "count": 10**6, "window": 8, "check": choice.randrange(1, 1000), "patience": 30.0}
    pair.a.tell("stream", name="x.s", sending=True, **plan)
    pair.b.tell("stream", name="x.r", sending=False, **plan)
    time.sleep(after)
    began = time.monotonic()
    victim = {"sender": pair.a, "receiver": pair.b}.get(kind.rpartition(" ")[2])
    if victim:
        os.kill(victim.child.pid, signal.SIGKILL if kind.startswith("kill") else signal.SIGSTOP)
    elif kind == "link down":
        cut()
    results = [_result(side) for side in (pair.a, pair.b) if side is not victim]
    return Fault(kind, after, results, time.monotonic() - began)


def _result(side: Process) -> int:
    try:
        return int(side.hear()["result"])
    except HarnessError:
        return -9  # it crashed


def table(faults: list[Fault]) -> dict[str, Any]:
    """Summary by kind."""
    kinds = sorted({fault.kind for fault in faults})
    return {
        kind: {
            "count": sum(f.kind == kind for f in faults),
            "slowest": max(f.took for f in faults if f.kind == kind),
            "bad": [asdict(f) for f in faults if f.kind == kind and not f.good],
        }
        for kind in kinds
    }
