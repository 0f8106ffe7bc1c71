"""The link emulator's loop, between devices of the test's own: sockets that keep packets apart, as TUN does."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from bagua_bench.configuration.network_shape import Link
from bagua_bench.network.commands import NetworkError
from bagua_bench.network.relay import Port, Relay, port

HEADER = 10  # bytes of virtio's
UNLIMITED = Link(None, 0.0, 0.0, 0.0)


def packet(number: int, nbytes: int, receiver: int = 1) -> bytes:
    """An IPv4 packet from the first server, always of the same connection."""
    addresses = bytes([198, 18, 0, 1, 198, 18, 0, receiver + 1])
    return bytes(HEADER) + (b"\x45" + bytes(11) + addresses + b"port" + bytes([number])).ljust(nbytes, b"\0")


def numbers(device: socket.socket, expected: int) -> list[int]:
    return [device.recv(100_000)[HEADER + 24] for _ in range(expected)]


@contextmanager
def running(
    links: list[Port], rates: tuple[float, ...] = (), sites: list[Port] | None = None
) -> Iterator[list[socket.socket]]:
    """What the servers have at their ends."""
    relay, ends, ours = Relay(), [], []
    for link in links:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        far.settimeout(30)
        for one in (near, far):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
        ours.append(near)
        ends.append(far)
        relay.add_server(link, near.fileno(), HEADER, None, rates)
    for line in sites or []:
        relay.add_site(line)
    control, end = os.pipe()
    loop = Thread(target=relay.run, args=(control,))
    loop.start()
    try:
        yield ends
    finally:
        os.close(end)
        loop.join()
        os.close(control)
        relay.close()
        for one in (*ours, *ends):
            one.close()


def test_packets_reach_their_servers_in_order() -> None:
    with running([port(UNLIMITED, 10**6, "0")] * 3) as (first, second, third):
        for number in range(100):
            first.send(packet(number, 100, 1 + number % 2))
        first.send(packet(200, 100, 7))  # of nobody
        assert numbers(second, 50) == list(range(0, 100, 2))
        assert numbers(third, 50) == list(range(1, 100, 2))


def test_packets_of_a_limited_connection_wait_for_each_other() -> None:
    """The first takes 20 ms and is over the limit from which a connection counts."""
    with running([port(UNLIMITED, 10**6, "0")] * 2, (70_000 * 8 / 0.02,)) as (first, second):
        began = time.monotonic()
        for number, nbytes in ((1, 70_000 - HEADER), (2, 1500), (3, 1500)):
            first.send(packet(number, nbytes))
        assert numbers(second, 3) == [1, 2, 3]
        assert time.monotonic() - began > 0.02


@pytest.mark.parametrize("sites", [0, 2])
def test_a_packet_takes_the_time_of_its_links(sites: int) -> None:
    """Two of 10 ms, one of 8 Mbit/s: 100,000 bytes take 100 ms. Between sites, their lines' time as well."""
    link, line = Link(8e6, 0.01, 0.0, 0.0), Link(None, 0.02, 0.0, 0.0)
    ways = [port(line, 10**6, "1")] * sites
    with running([port(link, 10**7, "0")] * 2, sites=ways) as (first, second):
        began = time.monotonic()
        for number in range(10):
            first.send(packet(number, 10_000))
        numbers(second, 10)
        took = time.monotonic() - began
    headers = 10 * 6 * 52 * 8 / 8e6
    expected = 0.1 + headers + 0.01 + (0.02 if sites else 0.0)
    assert expected - 1e-3 < took < expected + 0.2


def test_a_device_that_fails_ends_it_with_the_reason() -> None:
    """An end of a pipe that cannot be written to."""
    relay, (end, other), (control, hold) = Relay(), os.pipe(), os.pipe()
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    os.set_blocking(end, False)
    for descriptor in (near.fileno(), end):
        relay.add_server(port(UNLIMITED, 10**6, "0"), descriptor, HEADER)
    far.send(packet(1, 100))
    with pytest.raises(NetworkError, match="cannot send a packet: Bad file descriptor"):
        relay.run(control)
    relay.close()
    near.close()
    far.close()
    for descriptor in (end, other, control, hold):
        os.close(descriptor)
