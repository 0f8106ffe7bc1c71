"""A path with delay and loss: several streams against one plain connection, over the backend that this machine has.

It measures the group of ranks behind the torch backend, whose callers wait, as those of the plain connection do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

from bagua_bench import libraries
from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import machine, star
from bagua_bench.network.topology import Host
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
    link = Link(RATE, DELAY, 0.0, loss)
    with star.up(Shape((link, link), backend, control, LINUX_WINDOW, _CONNECTIONS, 0)) as network:
        a, b = network.hosts
        for moved in transfers(a, b, {_STREAMS: count, PLAIN: count}, rounds, _SIZE, _WINDOW):
            yield bench.sample(moved.way, _SIZE, _WINDOW, moved.round, moved.outcomes)


class Moved(NamedTuple):
    """A transfer; seconds: all of it, from the first message on."""

    way: str
    round: int
    seconds: float
    outcomes: tuple[dict[str, Any], dict[str, Any]]


def transfers(a: Host, b: Host, counts: Mapping[str, int], rounds: int, size: int, window: int) -> Iterator[Moved]:
    """Messages from one host to the other, so many by each way, in new connections."""
    for number, way in in_turn(list(counts), rounds):
        with linked(a, b, way) as (_, move):
            began = time.monotonic()
            outcomes = move(size=size, window=window, count=counts[way], patience=120.0)
            yield Moved(way, number, time.monotonic() - began, outcomes)


def in_turn(ways: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Every way in every round; in each another one is first."""
    for number in range(rounds):
        first = number % len(ways)
        yield from ((number, way) for way in (*ways[first:], *ways[:first]))


@contextmanager
def linked(a: Host, b: Host, way: str) -> Iterator[tuple[Pair, Callable[..., tuple[dict[str, Any], dict[str, Any]]]]]:
    """Processes on both hosts with a new connection, and what moves messages over it from the first to the second.

    A way is PLAIN or what BAGUA_NET_STREAMS is to be, and after a comma the congestion control if it is not the hosts'.
    """
    streams, _, congestion = way.partition(", ")
    plain = streams == PLAIN
    variables = {"NCCL_SOCKET_IFNAME": a.interface, "BAGUA_NET_CONGESTION": congestion}
    variables["BAGUA_NET_STREAMS"] = _STREAMS if plain else streams
    with Pair(compiled.harness(), libraries.plugin(), GROUP, variables, (a.prefix, b.prefix)) as pair:
        if plain:
            pair.link_plain(b.address)
        else:
            pair.link()
        yield pair, pair.plain_stream if plain else pair.stream
