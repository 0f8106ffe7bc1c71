"""Builds an emulated network and takes it down again, however the run ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands
from bagua_bench.network.link import LinkEmulator
from bagua_bench.network.netem import Netem
from bagua_bench.network.shape import Shape
from bagua_bench.network.topology import Host, make_hosts

_ENDING = (signal.SIGINT, signal.SIGTERM)


class Backend(Protocol):
    """What joins the servers; `frame` is the bytes that an interface counts around an IP packet."""

    @property
    def frame(self) -> int: ...

    def drops(self) -> int: ...

    def close(self) -> None: ...


class Network:
    """A network that is up."""

    def __init__(self, shape: Shape, hosts: list[Host], backend: Backend, script: str) -> None:
        self.shape, self.hosts, self.backend, self.script = shape, hosts, backend, script


@contextmanager
def up(shape: Shape) -> Iterator[Network]:
    """Have a network while the context lasts. NetworkError if it cannot be built; nothing of it remains."""
    namespaces.clear_stale()
    commands, backend = Commands(), None
    try:
        hosts = make_hosts(shape, commands)
        backend = (Netem if shape.backend == "netem" else LinkEmulator)(shape, hosts, commands)
        yield Network(shape, hosts, backend, commands.script())
    finally:
        with _undisturbed():
            if backend is not None:
                backend.close()
            namespaces.delete_own()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Have interruptions wait until the context ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
