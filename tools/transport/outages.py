"""Outages that are shorter than the time-out: whether a group of ranks goes on after them, and how soon."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tools.transport import shaped, torch_bench

DIRECTIONS = ("there", "back", "both")
_RATE = 400e6  # bit/s: whoever stays busy must not take all of the machine
_BEFORE = 0.2  # seconds of peace before the outage
_MOVED = 10_000  # bytes that only the busy group can have moved
_PATIENCE = 5.0  # seconds that it is watched


@dataclass
class Outage:
    """An outage, and what became of two ranks' groups."""

    timeout: float  # seconds, of the groups
    seconds: float  # that it lasted
    direction: str
    moved_one_way: float | None  # seconds from its end until data of the busy group moved ...
    moved: float | None  # ... and until it did so both ways
    resumed: dict[str, float]  # state of the group -> seconds from its end to that of an operation, on the slower rank
    errors: dict[str, str]  # state of the group, and rank -> error

    @property
    def survived(self) -> bool:
        """Whether all went on."""
        return not self.errors


@contextmanager
def ranks() -> Iterator[tuple[Sequence[shaped.Site], list[Any]]]:
    """Two sites with a rank on each; both last for any number of outages."""
    with shaped.pair() as sites:
        for site in sites:
            shaped.limit_flows(site, {}, _RATE)
        with torch_bench.ranks("tools.transport.outage_rank", sites, 1, {}) as processes:
            yield sites, processes


def suffer(sites: Sequence[shaped.Site], processes: Sequence[Any], timeout: float, share: float, way: str) -> Outage:
    """An outage of a share of the time-out (s), while one group is busy, one idle, and one waits for a late rank."""
    _ask(processes, {"open": timeout})
    _ask(processes, {"begin": True})
    time.sleep(_BEFORE)
    senders = {"there": sites[:1], "back": sites[1:], "both": sites}[way]
    began = time.monotonic()
    with shaped.swallowed(*senders, among=sites):
        time.sleep(max(0.0, began + timeout * share - time.monotonic()))
    ended = time.monotonic()
    _tell(processes, {"end": ended})
    one_way, both = _moved(sites, ended)
    answers = [torch_bench.hear(process) for process in processes]
    states = set(answers[0]["ended"]) & set(answers[1]["ended"])
    resumed = {state: max(answer["ended"][state] for answer in answers) for state in sorted(states)}
    errors = {f"{state} {rank}": text for rank in (0, 1) for state, text in answers[rank]["errors"].items()}
    return Outage(timeout, ended - began, way, one_way, both, resumed, errors)


def _moved(sites: Sequence[shaped.Site], since: float) -> tuple[float | None, float | None]:
    """Seconds until one of the sites has had something acknowledged, and until both have."""
    before = [_acknowledged(site) for site in sites]
    first = None
    while (now := time.monotonic()) < since + _PATIENCE:
        moving = [_acknowledged(site) - b > _MOVED for site, b in zip(sites, before, strict=True)]
        if any(moving) and first is None:
            first = now - since
        if all(moving):
            return first, now - since
        time.sleep(0.02)
    return first, None


def _acknowledged(site: shaped.Site) -> int:
    """Bytes that the site's connections have had acknowledged, as far as they are open."""
    return sum(int(count) for count in re.findall(r"bytes_acked:(\d+)", site.run("ss", "-Htin")))


def table(timeouts: Sequence[float], shares: Sequence[float]) -> Iterator[Outage]:
    """Every time-out (s) with every share of it, in every direction."""
    with ranks() as (sites, processes):
        for timeout in timeouts:
            for share in shares:
                for direction in DIRECTIONS:
                    yield suffer(sites, processes, timeout, share, direction)


def _tell(processes: Sequence[Any], command: dict[str, Any]) -> None:
    for process in processes:
        torch_bench.tell(process, command)


def _ask(processes: Sequence[Any], command: dict[str, Any]) -> list[Any]:
    _tell(processes, command)
    return [torch_bench.hear(process) for process in processes]
