"""The link emulator: one process that passes packets between the devices of all servers when they are due.

`python -m bagua_bench.network.relay SHAPE` (JSON: see `main`). It prints a line when it is ready, then a line
of counters for every line that it reads, and ends with its standard input.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from select import select
from typing import Any

from bagua_bench.configuration.network_shape import Link
from bagua_bench.network.namespaces import inside
from bagua_bench.network.packets import PacketPort
from bagua_bench.network.segments import count, cut
from bagua_bench.network.tun import Tun
from bagua_bench.network.wire import Flows, Port, wire_bytes

_AT_ONCE = 32  # packets read at a time, before due ones are delivered
_LATE = 1e-3  # seconds behind its time at which a packet counts as late
_DESTINATION = 19  # where in an IPv4 packet the last byte of the address is: server number + 1

_FLOW = slice(12, 24)  # where in an IPv4 packet without options the addresses and ports are

Event = tuple[float, int, Callable[[float], None]]
"""A time (seconds), a serial number, and the action that is due then."""

Piece = tuple[bytes, int, tuple[float, float]]
"""A packet, its bytes on a wire, and from when to when it is received."""

Device = Tun | PacketPort


class Relay:
    """Passes packets between the ports and devices of all servers."""

    def __init__(
        self, ports: list[Port], flows: list[Flows], devices: Sequence[Device], sites: Sequence[Port] = ()
    ) -> None:
        """sites: the lines of the sites, each with as many servers, to each other."""
        self._ports, self._flows, self._devices = ports, flows, devices
        self._sites, self._links = sites, [*ports, *sites]
        self._header = devices[0].header
        self._events: list[Event] = []
        self._serial = 0
        self._passed = self._late = 0
        self._servers = {device.fileno(): server for server, device in enumerate(devices)}

    def counters(self) -> dict[str, int]:
        """Numbers of packets: dropped by full queues, lost as asked for, passed on, and passed on late."""
        drops = sum(port.drops for port in self._links) + sum(flows.drops for flows in self._flows)
        drops += sum(device.drops() for device in self._devices)
        lost = sum(port.lost for port in self._links)
        return {"drops": drops, "lost": lost, "passed": self._passed, "late": self._late}

    def run(self) -> None:
        """Pass packets on until standard input ends."""
        control = sys.stdin.fileno()
        while True:
            readable, _, _ = select([control, *self._servers], [], [], self._deliver())
            self._deliver()
            for descriptor in readable:
                if descriptor != control:
                    self._read(self._servers[descriptor])
                elif not os.read(control, 100):
                    return
                else:
                    print(json.dumps(self.counters()), flush=True)

    def _deliver(self) -> float | None:
        """Do everything that is due; seconds until the next event, None if nothing is on its way."""
        while self._events:
            wait = self._events[0][0] - time.monotonic()
            if wait > 0:
                return wait
            when, _, action = heapq.heappop(self._events)
            action(when)
        return None

    def _read(self, server: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = self._devices[server].read()
            except BlockingIOError:
                return
            receiver = packet[self._header + _DESTINATION] - 1
            if packet[self._header] >> 4 != 4 or not 0 <= receiver < len(self._ports):
                continue
            nbytes, now = wire_bytes(len(packet) - self._header), time.monotonic()
            flow = packet[self._header :][_FLOW] if self._flows[server].tells_apart else b""
            begin = self._flows[server].leave(now, flow, nbytes)
            if begin is not None:
                self._at(begin, now, partial(self._leave, server, receiver, packet, nbytes))

    def _leave(self, server: int, receiver: int, packet: bytes, nbytes: int, now: float) -> None:
        times = self._ports[server].leave(now, nbytes)
        if times is None:
            return
        here, there = self._site(server), self._site(receiver)
        if here == there:
            self._at(times[0], now, partial(self._switch, times[1], receiver, packet, nbytes))
        else:
            self._at(times[0], now, partial(self._cross, times[1], here, there, receiver, packet, nbytes))

    def _site(self, server: int) -> int:
        return server * len(self._sites) // len(self._ports)

    def _cross(
        self, end: float, here: int, there: int, receiver: int, packet: bytes, nbytes: int, begin: float
    ) -> None:
        """Over the line of a site, to the switch that joins them."""
        times = self._sites[here].leave(begin, nbytes, end)
        if times is not None:
            self._at(times[0], begin, partial(self._land, times[1], there, receiver, packet, nbytes))

    def _land(self, end: float, there: int, receiver: int, packet: bytes, nbytes: int, begin: float) -> None:
        """Over the line of the other site, to its switch."""
        for piece, size, times in self._arrive(self._sites[there], end, packet, nbytes, begin):
            self._at(times[0], begin, partial(self._switch, times[1], receiver, piece, size))

    def _switch(self, end: float, receiver: int, packet: bytes, nbytes: int, begin: float) -> None:
        for piece, _, times in self._arrive(self._ports[receiver], end, packet, nbytes, begin):
            self._push(times[1], partial(self._write, receiver, piece))

    def _arrive(self, port: Port, end: float, packet: bytes, nbytes: int, begin: float) -> Iterator[Piece]:
        """What a port does not lose of a packet, by runs of its segments, and from when to when it receives them."""
        segments = count(packet, self._header) if port.link.loss else 1
        for first, last in port.survivors(segments):
            piece, size = packet, nbytes
            if last - first < segments:
                piece = cut(packet, self._header, first, last)
                size = wire_bytes(len(piece) - self._header)
            step = (end - begin) / segments
            times = port.arrive(begin + first * step, begin + last * step, size)
            if times is not None:
                yield piece, size, times

    def _at(self, when: float, now: float, action: Callable[[float], None]) -> None:
        first = not self._events or when < self._events[0][0]  # an earlier event that is late keeps its turn
        if when <= now and first:
            action(when)
        else:
            self._push(when, action)

    def _push(self, when: float, action: Callable[[float], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    def _write(self, server: int, packet: bytes, when: float) -> None:
        self._passed += 1
        self._late += time.monotonic() - when > _LATE
        try:
            self._devices[server].write(packet)
        except BlockingIOError:  # its receive queue is full
            self._ports[server].drops += 1


def main() -> None:
    """Keys of the argument: `seed`, `flow_rates`, `flow_delays`, `swing`, `servers`, `wan` (see `link`)."""
    shape: dict[str, Any] = json.loads(sys.argv[1])
    swing = shape["swing"]
    devices: list[Device] = []
    ports, flows = [], []
    for number, server in enumerate(shape["servers"]):
        with inside(server["namespace"]):
            name = server["device"]
            devices.append(Tun(name) if server["tun"] else PacketPort(name))
        ports.append(Port(Link(**server["link"]), server["queue"], Random(f"{shape['seed']} {number}"), swing))
        flows.append(Flows(shape["flow_rates"], server["queue"], shape["flow_delays"]))
    sites = [
        Port(Link(**wan["link"]), wan["queue"], Random(f"{shape['seed']} site {number}"), swing)
        for wan in filter(None, [shape["wan"]])
        for number in range(wan["sites"])
    ]
    with suppress(PermissionError):  # only root may; packets should not wait for computing ranks
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    print("ready", flush=True)
    Relay(ports, flows, devices, sites).run()


if __name__ == "__main__":
    main()
