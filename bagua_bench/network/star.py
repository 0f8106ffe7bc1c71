"""Builds an emulated network and takes it down again, however the run ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from bagua_bench.interrupts import ENDING
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands
from bagua_bench.network.link import LinkEmulator
from bagua_bench.network.netem import Netem
from bagua_bench.network.shape import Shape
from bagua_bench.network.topology import Host, make_hosts


class Backend(Protocol):
    """What joins the servers."""

    @property
    def frame(self) -> int:
        """Bytes around an IP packet that the rate of a link counts."""

    def drops(self) -> int:
        """Packets that found a full queue, or were lost, so far; NetworkError if the backend has ended."""

    def close(self) -> None:
        """End what does not go with the namespaces."""


@dataclass(frozen=True)
class Network:
    """A network that is up."""

    shape: Shape
    hosts: list[Host]
    backend: Backend
    commands: list[str]


@contextmanager
def up(shape: Shape) -> Iterator[Network]:
    """Have a network while the context lasts. NetworkError if it cannot be built; nothing of it remains.

    Interruptions wait while it is built and taken down.
    """
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    backend: Backend | None = None
    try:
        namespaces.clear_stale()
        commands = Commands()
        hosts = make_hosts(shape, commands)
        backend = (Netem if shape.backend == "netem" else LinkEmulator)(shape, hosts, commands)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield Network(shape, hosts, backend, commands.log())
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        if backend is not None:
            backend.close()
        namespaces.delete_own()
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
