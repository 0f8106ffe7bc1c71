"""Measures a network with sockets of its own: round-trip time and what TCP carries between two servers."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import psutil

from bagua_bench.network.namespaces import inside
from bagua_bench.network.topology import Host

_ECHOES = 20
_ROUND_TRIPS = 12  # from the start of a transfer until it is measured: slow start
_WARM = 0.15  # seconds, at least, for the same
_MEASURED = 0.35  # seconds of a transfer that are measured, at least
_PATIENCE = 30.0  # seconds until a probe gives up
_CHUNK = 256 * 1024
_STOLEN = 0.02  # of the processors' time that the host may withhold from this machine during a transfer
_TRANSFERS = 5  # until one with more of it counts all the same


@contextmanager
def connection(a: Host, b: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends, on servers a and b, of a TCP connection that a opens."""
    assert a.namespace and b.namespace
    with inside(b.namespace), socket.create_server((b.address, 0)) as listener:
        listener.settimeout(_PATIENCE)
        with inside(a.namespace):
            first = socket.create_connection(listener.getsockname(), timeout=_PATIENCE)
        second, _ = listener.accept()
    with first, second:
        for end in (first, second):
            end.settimeout(_PATIENCE)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield first, second


def rtt(a: Host, b: Host) -> float:
    """Median round-trip time of one byte between a and b, seconds."""
    with connection(a, b) as (near, far):
        echo = Thread(target=_echo, args=(far,))
        echo.start()
        times = [_round_trip(near) for _ in range(_ECHOES + 1)][1:]
        near.shutdown(socket.SHUT_WR)
        echo.join()
    return statistics.median(times)


def _round_trip(end: socket.socket) -> float:
    began = time.perf_counter()
    end.send(b"x")
    end.recv(1)
    return time.perf_counter() - began


def _echo(end: socket.socket) -> None:
    while data := end.recv(1):
        end.send(data)


def goodput(a: Host, b: Host, round_trip: float) -> float:
    """Bits/s of payload that one warm TCP connection carries from a to b; `round_trip` in seconds, as measured.

    What the host of a virtual machine takes away is missing from an emulated network's rate: a transfer that it
    disturbed is repeated, a few times, and the least disturbed one counts.
    """
    transfers: list[tuple[float, float]] = []
    while len(transfers) < _TRANSFERS and not any(stolen <= _STOLEN for stolen, _ in transfers):
        before, began = _stolen_seconds(), time.perf_counter()
        rate = _transfer(a, b, round_trip)
        available = (time.perf_counter() - began) * (os.cpu_count() or 1)
        transfers.append(((_stolen_seconds() - before) / available, rate))
    return min(transfers)[1]


def _stolen_seconds() -> float:
    """Processor time that the host has given to others, since the start of this machine; 0 where it does not say."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _transfer(a: Host, b: Host, round_trip: float) -> float:
    warm = _WARM + _ROUND_TRIPS * round_trip
    with connection(a, b) as (near, far):
        sender = Thread(target=_send, args=(near, warm + _MEASURED + 2 * round_trip))
        began = time.perf_counter()
        sender.start()
        rate = _receive(far, began + warm)
        sender.join()
    return rate


def _send(end: socket.socket, seconds: float) -> None:
    chunk = bytes(_CHUNK)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        end.send(chunk)
    end.shutdown(socket.SHUT_WR)


def _receive(end: socket.socket, start: float) -> float:
    """Bits/s of what arrives from the first packet after `start` to the last."""
    buffer, received, first, last = bytearray(_CHUNK), 0, 0.0, 0.0
    while count := end.recv_into(buffer):
        last = time.perf_counter()
        if first:
            received += count
        elif last >= start:
            first = last
    return received * 8 / (last - first) if last > first else 0.0
