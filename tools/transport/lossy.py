"""A path with delay and loss: several streams against one plain connection, over the backend that this machine has.

It measures the group of ranks behind the torch backend, whose callers wait, as those of the plain connection do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from bagua_bench import libraries
from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import machine, star
from tools.transport import bench, compiled
from tools.transport.bench import PLAIN, Sample
from tools.transport.pair import GROUP, Pair

RATE, DELAY = 1e9, 5e-3  # bit/s; seconds each way
LOSSES = {0.0: 150, 0.001: 40, 0.01: 20}  # share of packets lost -> messages; fewer where connections are slow
CONTROLS = ("reno", "cubic")
_SIZE, _WINDOW = 2**20, 4
_STREAMS = "4"
_CONNECTIONS = 8  # more than there are, so that no queue overflows


def run(rounds: int) -> dict[str, Any]:
    """Medians of the rates in bytes/s over `rounds` pairs of transfers, for each control and share of lost packets."""
    rows, samples = [], []
    backend = machine.choose("auto", CONTROLS[0])
    for control in CONTROLS:
        for loss, count in LOSSES.items():
            found = list(_transfers(backend, control, loss, count, rounds))
            rates = {plain: [s.rate for s in found if (s.transport == PLAIN) is plain] for plain in (False, True)}
            ours, plain = median(rates[False]), median(rates[True])
            row = {"congestion": control, "loss": loss, "rate": ours, "plain": plain, "times_plain": ours / plain}
            rows.append(row)
            samples += [{**row, **asdict(s)} for s in found]
    asked = {"backend": backend, "congestion": CONTROLS, "rate": RATE, "delay": DELAY}
    return {**asked, "summary": rows, "samples": samples}


def _transfers(backend: str, control: str, loss: float, count: int, rounds: int) -> Iterator[Sample]:
    """New connections for every pair; each of the two goes first in turn."""
    plan: dict[str, Any] = {"size": _SIZE, "window": _WINDOW, "count": count, "patience": 120.0}
    link = Link(RATE, DELAY, 0.0, loss)
    with star.up(Shape((link, link), backend, control, LINUX_WINDOW, _CONNECTIONS, 0)) as network:
        a, b = network.hosts
        plugin = (compiled.harness(), libraries.plugin(), GROUP)
        variables = {"NCCL_SOCKET_IFNAME": a.interface, "BAGUA_NET_STREAMS": _STREAMS}
        for number in range(rounds):
            with Pair(*plugin, variables, (a.prefix, b.prefix)) as pair:
                pair.link()
                pair.link_plain(b.address)
                transfers = [("bagua-net", pair.stream), (PLAIN, pair.plain_stream)]
                for name, transfer in transfers[:: 1 if number % 2 == 0 else -1]:
                    yield bench.sample(name, _SIZE, _WINDOW, number, transfer(**plan))
