"""Builds an emulated network and takes it down again, no matter how the run ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from bagua_bench.configuration.network_shape import Shape
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands
from bagua_bench.network.link import LinkEmulator
from bagua_bench.network.netem import Netem
from bagua_bench.network.topology import Host, make_hosts
from bagua_bench.processes.interrupts import ENDING


class Backend(Protocol):
    """Joins the servers with links."""

    @property
    def frame(self) -> int:
        """Bytes around an IP packet that the rate of a link counts."""

    def drops(self) -> int:
        """Number of packets so far that found a full queue or were lost; NetworkError if the backend has ended."""

    def passed(self) -> tuple[int, int] | None:
        """How many packets it has passed on so far, and how many of them over 1 ms late; None where a kernel does."""

    def close(self) -> None:
        """End everything that deleting the namespaces would not end."""


@dataclass(frozen=True)
class Network:
    """A network that is up."""

    shape: Shape
    hosts: list[Host]
    backend: Backend
    commands: list[str]


@contextmanager
def up(shape: Shape) -> Iterator[Network]:
    """A network that is up as long as the context lasts. NetworkError if it cannot be built; then nothing remains.

    Signals that would interrupt wait until it is built, or taken down.
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
