"""The link emulator: one process that passes packets between the devices of all servers when they are due.

`python -m bagua_bench.network.relay SHAPE` (JSON: see `main`). It prints a line when it is ready, then a line
of counters for every line that it reads, and ends with its standard input. Its rules and its loop are C++ (`cpp`).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from bagua_bench.configuration.network_shape import Link
from bagua_bench.network.commands import NetworkError
from bagua_bench.network.namespaces import inside
from bagua_bench.network.packets import PacketPort, Ring
from bagua_bench.network.tun import Tun

LIBRARY = Path(__file__).resolve().parent / "librelay.so"
NOT_BUILT = (
    f"needs {LIBRARY.name}, which the installation did not build: no C++17 compiler was found, or it failed; install "
    "g++ and install this package again"
)
_REASON = 500  # bytes for why it failed


class Swing(ctypes.Structure):
    """For every other so many seconds, a line has only this share of its rate; never with 0 seconds."""

    _fields_ = (("every", ctypes.c_double), ("share", ctypes.c_double))


class Port(ctypes.Structure):
    """A server's link, or the line of a site, as the library takes it."""

    _fields_ = (
        ("bandwidth", ctypes.c_double),  # bit/s; 0: unlimited
        ("latency", ctypes.c_double),
        ("jitter", ctypes.c_double),
        ("loss", ctypes.c_double),
        ("queue", ctypes.c_int64),
        ("seed", ctypes.c_char_p),
        ("swing", Swing),
    )


def port(link: Link, queue: int, seed: str, swing: Sequence[float] | None = None) -> Port:
    """A link with so many bytes of room in each of its queues."""
    rate = link.bandwidth or 0.0
    return Port(rate, link.latency, link.jitter, link.loss, queue, seed.encode(), Swing(*(swing or (0.0, 1.0))))


@cache
def library() -> ctypes.CDLL:
    """The compiled part; NetworkError if it was not built."""
    if not LIBRARY.exists():
        raise NetworkError(f"the link emulator {NOT_BUILT}")
    compiled = ctypes.CDLL(str(LIBRARY))
    pointer, doubles, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_double), ctypes.c_size_t
    number, of_port = ctypes.c_int, ctypes.POINTER(Port)
    compiled.relay_new.restype = pointer
    compiled.relay_add_server.argtypes = [pointer, of_port, doubles, size, doubles, size, number, size, pointer]
    compiled.relay_add_server.restype = None
    compiled.relay_add_site.argtypes, compiled.relay_add_site.restype = [pointer, of_port], None
    compiled.relay_run.argtypes, compiled.relay_run.restype = [pointer, number, pointer, size], number
    compiled.relay_delete.argtypes, compiled.relay_delete.restype = [pointer], None
    return compiled


class Relay:
    """Passes packets between the devices of all servers."""

    def __init__(self) -> None:
        self._relay = library().relay_new()

    def add_server(
        self,
        link: Port,
        descriptor: int,
        header: int,
        ring: Ring | None = None,
        rates: Sequence[float] = (),
        delays: Sequence[float] = (),
    ) -> None:
        """The next server, whose packets begin after so many bytes. Its single connections that carry much data get
        these rates (bit/s) and delays (seconds) in turn."""
        of_rates, of_delays = ((ctypes.c_double * len(values))(*values) for values in (rates, delays))
        flows = (of_rates, len(rates), of_delays, len(delays))
        library().relay_add_server(self._relay, link, *flows, descriptor, header, ring and ctypes.byref(ring))

    def add_site(self, line: Port) -> None:
        """The line of the next site to the others; each has as many servers."""
        library().relay_add_site(self._relay, line)

    def run(self, control: int) -> None:
        """Pass packets on until this descriptor ends; counters of packets on standard output, JSON, for each line from
        it: dropped by full queues, lost as asked for, passed on, and passed on late. NetworkError if a device fails."""
        reason = ctypes.create_string_buffer(_REASON)
        if library().relay_run(self._relay, control, reason, _REASON):
            raise NetworkError(f"the link emulator: {reason.value.decode()}")

    def close(self) -> None:
        """Drop what is under way."""
        library().relay_delete(self._relay)


def main() -> None:
    """Keys of the argument: `seed`, `flow_rates`, `flow_delays`, `swing`, `servers`, `wan` (see `link`)."""
    shape: dict[str, Any] = json.loads(sys.argv[1])
    relay, seed, devices = Relay(), shape["seed"], []
    for number, server in enumerate(shape["servers"]):
        with inside(server["namespace"]):
            devices.append((Tun if server["tun"] else PacketPort)(server["device"]))
        own = port(Link(**server["link"]), server["queue"], f"{seed} {number}", shape["swing"])
        device, of_flows = devices[-1], (shape["flow_rates"], shape["flow_delays"])
        relay.add_server(own, device.fileno(), device.header, device.ring, *of_flows)
    for wan in filter(None, [shape["wan"]]):
        for number in range(wan["sites"]):
            relay.add_site(port(Link(**wan["link"]), wan["queue"], f"{seed} site {number}", shape["swing"]))
    with suppress(PermissionError):  # only root may; packets should not wait for computing ranks
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    print("ready", flush=True)
    relay.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
