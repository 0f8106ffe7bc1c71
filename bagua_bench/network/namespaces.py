"""Names, enters and deletes network namespaces of this process; also deletes those of processes that have ended."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bagua_bench.network.commands import NetworkError, run
from bagua_bench.processes.owner import is_stale, mark

_NAMES = Path("/run/netns")
_FILES = Path("/etc/netns")  # what `ip netns exec` mounts over files of /etc, by namespace
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def name(part: str) -> str:
    """Name of the namespace `part` of this process."""
    return mark() + part


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Move the calling thread into a namespace for a while; sockets that it makes there stay there."""
    with Path("/proc/thread-self/ns/net").open() as home, (_NAMES / namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        raise NetworkError(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def name_host(namespace: str, address: str) -> None:
    """Let the name of this machine mean `address` to processes that `ip netns exec` starts in a namespace.

    A library that binds to its host's name would otherwise use an address that the namespace does not have. Where
    files of /etc may not be written, names stay as they are.
    """
    folder = _FILES / namespace
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")


def clear_stale() -> None:
    """Delete the namespaces of processes that ended without doing so."""
    _delete(is_stale)


def delete_own() -> None:
    """Delete all namespaces of this process, and with them their interfaces and queues."""
    _delete(lambda namespace: namespace.startswith(mark()))


def _delete(chosen: Callable[[str], bool]) -> None:
    for path in sorted(_NAMES.glob("*")):
        if chosen(path.name):
            try:
                run(f"ip netns delete {path.name}")
            except NetworkError:
                if path.exists():  # otherwise another run was faster
                    raise
    for path in sorted(_FILES.glob("*")):
        if chosen(path.name):
            shutil.rmtree(path, ignore_errors=True)
