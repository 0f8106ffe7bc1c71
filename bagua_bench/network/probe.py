"""Measures a network with sockets of its own: round-trip time, and the rate of TCP between two servers."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psutil

from bagua_bench.network.namespaces import inside
from bagua_bench.network.topology import Host

_ECHOES = 20
_ROUND_TRIPS = 12  # from the start of a transfer until it is measured, because of slow start
_WARM = 0.15  # seconds, at least, for the same reason
_MEASURED = 0.35  # seconds of a transfer that a measurement takes, at least
_PATIENCE = 30.0  # seconds until a probe gives up
_CHUNK = 256 * 1024
_STOLEN = 0.02  # share of the processors' time that the host may take during a measurement
_MEASUREMENTS = 5  # after which one that lost more counts all the same


@contextmanager
def connection(a: Host, b: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a TCP connection that server a opens to server b."""
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

    Processor time that the host takes from a virtual machine lowers the rate of an emulated network. A measurement that
    lost too much of it is therefore repeated a few times, and the least disturbed one counts. All use one connection,
    because limits of single connections (`network.flow_rates`) are dealt out in the order in which they are opened.
    """
    measured: list[tuple[float, float]] = []
    with connection(a, b) as (near, far):
        enough = Event()
        sender = Thread(target=_send, args=(near, enough))
        sender.start()
        try:
            _receive(far, _WARM + _ROUND_TRIPS * round_trip)
            while len(measured) < _MEASUREMENTS and not any(stolen <= _STOLEN for stolen, _ in measured):
                before, began = _stolen_seconds(), time.perf_counter()
                rate = _receive(far, _MEASURED + 2 * round_trip)
                available = (time.perf_counter() - began) * (os.cpu_count() or 1)
                measured.append(((_stolen_seconds() - before) / available, rate))
        finally:
            enough.set()
        while far.recv(_CHUNK):
            pass
        sender.join()
    return min(measured)[1]


def _stolen_seconds() -> float:
    """Processor seconds that the host has given to others since this machine started; 0 where that is not known."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _send(end: socket.socket, enough: Event) -> None:
    chunk = bytes(_CHUNK)
    while not enough.is_set():
        end.send(chunk)
    end.shutdown(socket.SHUT_WR)


def _receive(end: socket.socket, seconds: float) -> float:
    """Bits/s that arrive during at least so many seconds, measured from one packet to another."""
    buffer, received = bytearray(_CHUNK), 0
    end.recv_into(buffer)
    first = now = time.perf_counter()
    while now < first + seconds:
        received += end.recv_into(buffer)
        now = time.perf_counter()
    return received * 8 / (now - first)
