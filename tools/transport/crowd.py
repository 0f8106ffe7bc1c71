"""What it takes to set up a group of many ranks: time, connections, threads and memory of a rank.

Ranks are processes on this machine, over loopback. They are forks of one that has loaded the transport and nothing
else, so that their memory is the group's.
"""

from __future__ import annotations

import array
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from bagua_bench.transport.native import Group

OPEN = {"all at the start": "65536", "when needed": "0"}
"""How connections are opened, and BAGUA_NET_EAGER for it."""
_COUNT = 1 << 18  # elements of an all-reduce
_FLOAT, _SUM, _LIMIT = 0, 0, 300.0
_ROUNDS = 5


@dataclass(frozen=True)
class Crowd:
    """Medians over ranks, but for seconds, which are the slowest rank's."""

    ranks: int
    opened: str
    joined: float
    """Seconds until the group is there."""
    first: float
    """Seconds of the first all-reduce of 1 MiB, which may have to open connections."""
    usual: float
    """Seconds of a later one, median of five."""
    sockets: int
    threads: int
    memory: int
    """Resident bytes that the group has added; buffers of the kernel are not in it."""


def gather(ranks: int, opened: str) -> Crowd:
    """Set up one group. RuntimeError if a rank fails."""
    _allow_many()
    context = get_context("fork")
    processes, ends = [], []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=_rank, args=(rank, ranks, OPEN[opened], theirs), daemon=True))
            processes[-1].start()
            theirs.close()  # so that no later rank inherits it, and its end is seen
            ends.append(ours)
        handles = _from_all(ends)
        steps = [_step(ends, handles)] + [_step(ends, None) for _ in range(1 + _ROUNDS)]
        held = _step(ends, None)
    finally:
        for process in processes:
            process.kill()
            process.join()
    joined, first, *others = (max(seconds) for seconds in steps)
    sockets, threads, memory = (int(median(values)) for values in zip(*held, strict=True))
    return Crowd(ranks, opened, joined, first, median(others), sockets, threads, memory)


def typical(found: Iterable[Crowd]) -> Iterator[Crowd]:
    """The median of all rounds, for each size and way to open."""
    groups: dict[tuple[int, str], list[Crowd]] = {}
    for one in found:
        groups.setdefault((one.ranks, one.opened), []).append(one)
    for key, rounds in groups.items():
        rest = [field.name for field in fields(Crowd)[2:]]
        yield Crowd(*key, *(median(getattr(one, name) for one in rounds) for name in rest))


def _step(ends: Sequence[Connection], given: list[bytes] | None) -> list[Any]:
    """Let all ranks take their next step at once; what they answer."""
    for end in ends:
        end.send(given)
    return _from_all(ends)


def _from_all(ends: Sequence[Connection]) -> list[Any]:
    answers = []
    for rank, end in enumerate(ends):
        try:
            answer = end.recv()
        except EOFError:
            answer = RuntimeError("ended")
        if isinstance(answer, Exception):
            raise RuntimeError(f"rank {rank}: {answer}")
        answers.append(answer)
    return answers


def _rank(rank: int, size: int, eager: str, end: Connection) -> None:
    try:
        _steps(rank, size, eager, end)
    except Exception as error:
        end.send(error)


def _steps(rank: int, size: int, eager: str, end: Connection) -> None:
    os.environ.update(BAGUA_NET_EAGER=eager, BAGUA_NET_INTERFACES="lo")
    data = array.array("f", [1.0]) * _COUNT
    address, _ = data.buffer_info()
    before, others = _resident(), _sockets()
    group = Group(rank, size)
    end.send(group.handle)

    def timed(call: Callable[[], None]) -> None:
        began = time.monotonic()
        call()
        end.send(time.monotonic() - began)

    handles = end.recv()
    timed(lambda: group.join(handles, _LIMIT))
    for _ in range(1 + _ROUNDS):
        end.recv()
        timed(lambda: group.all_reduce(address, _COUNT, _FLOAT, _SUM, _LIMIT))
    end.recv()
    threads = len(list(Path("/proc/self/task").iterdir()))
    end.send((_sockets() - others, threads, _resident() - before))
    end.recv()


def _sockets() -> int:
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _allow_many() -> None:
    """As many descriptors as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
