"""`bagua-bench transport watch [PID ...]`: the TCP connections of running jobs, and what each carries now.

What is shown is the kernel's own account (`ss`, of Debian's iproute2), so that a job needs no preparation: any process
can be watched, whatever its transport; those of other network namespaces by root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bagua_bench import libraries
from bagua_bench.configuration import units

_WIDE = 160  # columns where there is no terminal
_LIST = ("ss", "-HOtinp", "state", "established")
_OWNER = re.compile(r"\bpid=(\d+)")
_ENDS = re.compile(r"^\s*\d+\s+(?P<queued>\d+)\s+(?P<local>\S+)\s+(?P<peer>\S+)")
_NUMBER = {key: re.compile(rf"\b{key}:(\d+)") for key in ("bytes_sent", "bytes_received", "notsent")}
_RTT = re.compile(r"\brtt:([\d.]+)/")
_AGAIN = re.compile(r"\bretrans:\d+/(\d+)")


@dataclass(frozen=True)
class Connection:
    """One TCP connection of a process since it was opened: bytes, seconds, segments that were sent again."""

    process: int
    rank: str
    """As the launcher numbers it; empty if none did."""
    local: str
    peer: str
    sent: int
    received: int
    queued: int
    """Bytes that were written and not acknowledged yet."""
    waiting: int
    """Of these, those that the kernel has not sent yet."""
    rtt: float
    again: int


@dataclass(frozen=True)
class Flow:
    """A connection during a time: bytes/s both ways and segments/s sent again; the rest as at its end."""

    process: int
    rank: str
    local: str
    peer: str
    sent: float
    received: float
    queued: int
    waiting: int
    rtt: float
    again: float


def processes() -> list[int]:
    """This user's processes that have loaded Bagua-Net."""
    name, found = libraries.NAME, []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and name in (folder / "maps").read_text():
                found.append(int(folder.name))
    return sorted(found)


def connections(pids: Sequence[int]) -> list[Connection]:
    """All TCP connections of some processes that live. RuntimeError if they cannot be listed."""
    if shutil.which("ss") is None:
        raise RuntimeError("needs ss; Debian's package iproute2")
    places: dict[int, list[int]] = {}
    for pid in pids:
        with suppress(OSError):
            places.setdefault(Path(f"/proc/{pid}/ns/net").stat().st_ino, []).append(pid)
    own = Path("/proc/self/ns/net").stat().st_ino
    return [one for place, there in places.items() for one in _in_one_place(there, place == own)]


def _in_one_place(pids: Sequence[int], own: bool) -> Iterator[Connection]:
    prefix = [] if own else ["nsenter", "-t", str(pids[0]), "-n"]
    done = subprocess.run([*prefix, *_LIST], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ss failed")
    ranks = {pid: _rank(pid) for pid in pids}
    for line in done.stdout.splitlines():
        ends = _ENDS.match(line)
        owners = set(map(int, _OWNER.findall(line))) & set(pids)
        if ends is None or not owners:
            continue
        pid, counted = min(owners), {key: _first(pattern, line) for key, pattern in _NUMBER.items()}
        yield Connection(
            process=pid,
            rank=ranks[pid],
            local=ends["local"],
            peer=ends["peer"],
            sent=int(counted["bytes_sent"]),
            received=int(counted["bytes_received"]),
            queued=int(ends["queued"]),
            waiting=int(counted["notsent"]),
            rtt=_first(_RTT, line) / 1e3,
            again=int(_first(_AGAIN, line)),
        )


def _first(pattern: re.Pattern[str], line: str) -> float:
    """What the kernel leaves out is zero."""
    found = pattern.search(line)
    return float(found[1]) if found else 0.0


def _rank(pid: int) -> str:
    with suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == b"RANK":
                return value.decode()
    return ""


def flows(before: Sequence[Connection], after: Sequence[Connection], seconds: float) -> list[Flow]:
    """What the connections that were there both times carried meanwhile; the busiest first."""
    known = {(one.process, one.local, one.peer): one for one in before}
    found = []
    for now in after:
        then = known.get((now.process, now.local, now.peer))
        if then is None:
            continue
        found.append(
            Flow(
                **{key: getattr(now, key) for key in ("process", "rank", "local", "peer", "queued", "waiting", "rtt")},
                sent=(now.sent - then.sent) / seconds,
                received=(now.received - then.received) / seconds,
                again=(now.again - then.again) / seconds,
            )
        )
    return sorted(found, key=lambda flow: -(flow.sent + flow.received))


def table(found: Sequence[Flow]) -> Group:
    """Those that carry something; how many others there are below."""
    busy = [flow for flow in found if flow.sent or flow.received or flow.queued]
    shown = Table("process", "rank", "connection")
    for name in ("sent", "received", "queued", "unsent", "round trip", "sent again"):
        shown.add_column(name, justify="right")
    for flow in busy:
        rates = [f"{units.amount(rate, units.SIZES)}/s" if rate else "" for rate in (flow.sent, flow.received)]
        queues = [units.amount(nbytes, units.SIZES) if nbytes else "" for nbytes in (flow.queued, flow.waiting)]
        again = f"{flow.again:.3g}/s" if flow.again else ""
        ends = f"{flow.local} -> {flow.peer}"
        shown.add_row(str(flow.process), flow.rank, ends, *rates, *queues, units.duration(flow.rtt), again)
    idle = len(found) - len(busy)
    return Group(shown, Text(f"{idle} more connections, idle" if idle else ""))


def run(pids: Sequence[int], seconds: float, once: bool, as_json: bool) -> int:
    """Show the connections until interrupted, or until the processes have ended, or once; 0.

    RuntimeError if there is nothing to watch.
    """
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    if missing := [pid for pid in pids if not _lives(pid)]:
        raise RuntimeError(f"process {missing[0]}: no such process; allowed: those of yours, by their numbers")
    if not (chosen := list(pids) or processes()):
        raise RuntimeError("no process of yours has loaded Bagua-Net; any other one by its number")
    before, began = connections(chosen), time.monotonic()

    def measured() -> list[Flow]:
        nonlocal chosen, before, began
        time.sleep(seconds)
        chosen = [pid for pid in pids if _lives(pid)] or ([] if pids else processes())
        after, now = connections(chosen), time.monotonic()
        found = flows(before, after, now - began)
        before, began = after, now
        return found

    if as_json:
        print(json.dumps([asdict(flow) for flow in measured()], indent=1))
    elif once:
        console.print(table(measured()))
    else:
        with suppress(KeyboardInterrupt), Live(table(measured()), console=console, auto_refresh=False) as live:
            while chosen:
                live.update(table(measured()), refresh=True)
    return 0


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
