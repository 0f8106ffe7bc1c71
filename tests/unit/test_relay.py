"""The link emulator's loop, between devices of the test's own."""

from __future__ import annotations

import os
import time
from random import Random
from threading import Timer
from typing import IO

import pytest

from bagua_bench.configuration.network_shape import Link
from bagua_bench.network.relay import Relay
from bagua_bench.network.wire import Flows, Port

FIRST, SECOND = 0, 1  # servers


def packet(number: int, nbytes: int) -> bytes:
    """An IPv4 packet from the first server to the second, always of the same connection."""
    addresses = bytes([198, 18, 0, FIRST + 1, 198, 18, 0, SECOND + 1])
    return (b"\x45" + bytes(11) + addresses + b"port" + bytes([number])).ljust(nbytes, b"\0")


class Device:
    """Gives packets, each after a pause; keeps what it is handed, and ends the loop with the last of them."""

    header = 0

    def __init__(self, packets: list[tuple[float, bytes]], expected: int, control: IO[str] | None) -> None:
        self._packets, self._expected, self._control = packets, expected, control
        self._readable, end = os.pipe()
        if packets:
            os.write(end, b"x")
        self.got: list[int] = []

    def fileno(self) -> int:
        return self._readable

    def read(self) -> bytes:
        if not self._packets:
            raise BlockingIOError
        pause, packet = self._packets.pop(0)
        time.sleep(pause)
        if not self._packets:
            os.read(self._readable, 1)
        return packet

    def write(self, packet: bytes) -> None:
        self.got.append(packet[24])
        if len(self.got) == self._expected and self._control:
            self._control.close()

    def drops(self) -> int:
        return 0


def test_a_packet_that_is_overdue_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second should leave while the loop is busy reading the third, which could leave at once."""
    stdin, end = os.pipe()
    control = os.fdopen(end, "w")
    packets = [(0.0, packet(1, 70_000)), (0.0, packet(2, 1500)), (0.05, packet(3, 1500))]
    devices = [Device(packets, 0, None), Device([], 3, control)]
    unlimited = Link(None, 0.0, 0.0, 0.0)
    ports = [Port(unlimited, 10**6, Random(0)) for _ in devices]
    relay = Relay(ports, [Flows([70_000 * 8 / 0.02], 10**6), Flows([], 10**6)], devices)  # type: ignore[arg-type]
    late = Timer(60, control.close)
    late.start()
    with os.fdopen(stdin) as commands:
        monkeypatch.setattr("sys.stdin", commands)
        relay.run()
    late.cancel()
    assert devices[SECOND].got == [1, 2, 3]
    counters = relay.counters()
    assert (counters["drops"], counters["lost"], counters["passed"]) == (0, 0, 3)
    assert counters["late"] >= 1, "the second waited for the third to be read"
