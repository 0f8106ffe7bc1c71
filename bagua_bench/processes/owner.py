"""Marks what a run creates on the machine with the owning process, so a later run can clean up after a kill."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

PREFIX = "bagua-bench-"
_OWNED = re.compile(re.escape(PREFIX) + r"(\d+)-(\d+)-(\w+)-")


def mark() -> str:
    """Prefix of every name that this process owns: its id and its start time, because ids are reused."""
    return f"{PREFIX}{os.getpid()}-{_started(os.getpid())}-{_where()}-"


def is_stale(name: str) -> bool:
    """Whether `name` carries the mark of a process that has ended; False for processes of other machines."""
    match = _OWNED.match(name)
    return match is not None and match[3] == _where() and _started(int(match[1])) != int(match[2])


def folder() -> tempfile.TemporaryDirectory[str]:
    """A new temporary folder of this process. Folders of processes that have ended are removed first."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another run was faster
            if is_stale(path.name) and path.stat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=mark())


@cache
def _where() -> str:
    """Hash of the scope in which a process id is unique: this boot of this machine, this container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(f"{boot}{Path('/proc/self/ns/pid').stat().st_ino}".encode()).hexdigest()[:6]


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])
