"""Threads and sockets of this process. It imports nothing of the suite: see worker.py."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_PF_EXITING = 0x4  # linux/sched.h


def threads() -> int:
    """Threads that are not ending: the kernel lists one for a moment longer than whoever joins it waits."""
    count = 0
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            count += not int(stat.read_text().rpartition(")")[2].split()[6]) & _PF_EXITING
    return count


def connected() -> list[int]:
    """Descriptors of connected TCP sockets, in the order in which they were made."""
    found = []
    for fd in sorted(int(p.name) for p in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if not str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(fd)) as s:
                s.getpeername()
                found.append(fd)
    return found


def port(fd: int) -> int:
    """The local one of a socket."""
    with socket.socket(fileno=os.dup(fd)) as s:
        return int(s.getsockname()[1])
