"""The link emulator: one process that passes packets between the TUN devices of all servers when they are due.

`python -m bagua_bench.network.relay SHAPE` (JSON: see `main`). It prints a line when it is ready, and a line of
counters for every line it reads; it ends with its standard input.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from contextlib import suppress
from random import Random
from select import select
from typing import Any

from bagua_bench.network.namespaces import inside
from bagua_bench.network.shape import Link
from bagua_bench.network.tun import HEADER, LONGEST, open_tun
from bagua_bench.network.wire import Port, wire_bytes

_AT_ONCE = 32  # packets read before those that are due are delivered
_DESTINATION = HEADER + 19  # last byte of the IPv4 address: server number + 1

Event = tuple[float, int, int, float, bytes]
"""When; a serial number; the receiving server; when the packet's end reaches the switch (0: it has); the packet."""


class Relay:
    """Ports and descriptors by server."""

    def __init__(self, ports: list[Port], tuns: list[int]) -> None:
        self._ports, self._tuns = ports, tuns
        self._events: list[Event] = []
        self._serial = 0
        self._servers = {tun: server for server, tun in enumerate(tuns)}

    def counters(self) -> dict[str, int]:
        """Packets dropped by full queues, and lost as asked for."""
        return {"drops": sum(port.drops for port in self._ports), "lost": sum(port.lost for port in self._ports)}

    def run(self) -> None:
        """Pass packets on until standard input ends."""
        control = sys.stdin.fileno()
        while True:
            readable, _, _ = select([control, *self._tuns], [], [], self._deliver())
            self._deliver()
            for descriptor in readable:
                if descriptor != control:
                    self._read(self._servers[descriptor])
                elif not os.read(control, 100):
                    return
                else:
                    print(json.dumps(self.counters()), flush=True)

    def _deliver(self) -> float | None:
        """Handle what is due; seconds until the next is, None if nothing is on its way."""
        while self._events:
            wait = self._events[0][0] - time.monotonic()
            if wait > 0:
                return wait
            when, _, server, end, packet = heapq.heappop(self._events)
            if end:
                self._switch(when, end, server, packet)
            else:
                self._write(server, packet)
        return None

    def _read(self, server: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(self._tuns[server], LONGEST)
            except BlockingIOError:
                return
            receiver = packet[_DESTINATION] - 1
            if packet[HEADER] >> 4 != 4 or not 0 <= receiver < len(self._ports):
                continue
            now = time.monotonic()
            times = self._ports[server].leave(now, wire_bytes(len(packet) - HEADER))
            if times is None:
                continue
            if times[0] <= now:
                self._switch(*times, receiver, packet)
            else:
                self._push(times[0], receiver, times[1], packet)

    def _switch(self, begin: float, end: float, receiver: int, packet: bytes) -> None:
        when = self._ports[receiver].arrive(begin, end, wire_bytes(len(packet) - HEADER))
        if when is not None:
            self._push(when, receiver, 0.0, packet)

    def _push(self, when: float, server: int, end: float, packet: bytes) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, server, end, packet))

    def _write(self, server: int, packet: bytes) -> None:
        try:
            os.write(self._tuns[server], packet)
        except BlockingIOError:  # its receive queue is full
            self._ports[server].drops += 1


def main() -> None:
    """Keys of the argument: `seed`, `offload`, `interface`, and `servers`: namespace, queue in bytes, link."""
    shape: dict[str, Any] = json.loads(sys.argv[1])
    tuns, ports = [], []
    for number, server in enumerate(shape["servers"]):
        with inside(server["namespace"]):
            tuns.append(open_tun(shape["interface"], shape["offload"]))
        ports.append(Port(Link(**server["link"]), server["queue"], Random(f"{shape['seed']} {number}")))
    with suppress(PermissionError):  # root's only: packets should not wait for the computing ranks
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    print("ready", flush=True)
    Relay(ports, tuns).run()


if __name__ == "__main__":
    main()
