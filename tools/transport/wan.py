"""Long paths: what share of a line the transport fills with a fixed number of streams, and with one that it chooses.

Beside one plain TCP connection, over the backend that this machine has. It measures the group of ranks behind the torch
backend, whose callers wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bagua_bench import libraries
from bagua_bench.configuration.network_shape import HEADERS, LINUX_WINDOW, MTU, Link, Shape
from bagua_bench.network import machine, star
from bagua_bench.network.topology import Host
from tools.transport import compiled, lossy
from tools.transport.bench import PLAIN
from tools.transport.pair import HarnessError, Pair

WAYS = ("4", "auto", PLAIN)
ROUND_TRIPS = (0.03, 0.08, 0.2)  # seconds
LOSSES = (0.0, 1e-4, 1e-3, 1e-2)  # share of packets lost
CONTROL = "cubic"
_CONNECTIONS = 70  # for which queues have room: the most streams that there may be, and the others of a connection
_SECONDS, _ROUND_TRIPS = 3.0, 20.0  # that a transfer should take, and round trips beyond: it begins slowly
_SECONDS_BESIDE = 8.0  # for a connection beside others, with its fair share
_SIZE, _WINDOW, _FEWEST = 2**17, 16, 24  # bytes of a message; under way at a time; fewer would not tell a rate


@dataclass(frozen=True)
class Path:
    """Medians over the rounds of one way to send over one path. rate: of the payload, bytes/s, over all of a transfer's
    time, beginning with the first message of a new connection; of_line: of the line's, which carries headers, too."""

    line: float  # bit/s
    round_trip: float  # seconds
    loss: float
    way: str
    rate: float
    of_line: float
    times_plain: float


def measure(lines: Sequence[float], rounds: int) -> Iterator[Path]:
    """Every path with every way in turn; lines in bit/s."""
    backend = machine.choose("auto", CONTROL)
    for line in lines:
        for round_trip in ROUND_TRIPS:
            for loss in LOSSES:
                yield from _path(backend, line, round_trip, loss, rounds)


def _path(backend: str, line: float, round_trip: float, loss: float, rounds: int) -> Iterator[Path]:
    link = Link(line, round_trip / 2, 0.0, loss)
    seconds = _SECONDS + _ROUND_TRIPS * round_trip
    counts = {way: max(_FEWEST, int(_expected(way, line, round_trip, loss) * seconds / _SIZE)) for way in WAYS}
    with star.up(Shape((link, link), backend, CONTROL, LINUX_WINDOW, _CONNECTIONS, 0)) as network:
        a, b = network.hosts
        found = list(lossy.transfers(a, b, counts, rounds, _SIZE, _WINDOW))
    seconds_of = {way: median(one.seconds for one in found if one.way == way) for way in WAYS}
    rates = {way: counts[way] * _SIZE / seconds_of[way] for way in WAYS}
    for way, rate in rates.items():
        yield Path(line, round_trip, loss, way, rate, rate * 8 / line, rate / rates[PLAIN])


@dataclass(frozen=True)
class Left:
    """What one plain TCP connection gets of a line that the transport fills.

    share: of the line, median; fair: what each of all connections would have if they had the same.
    """

    line: float  # bit/s
    round_trip: float  # seconds
    way: str
    streams: int
    share: float
    fair: float


def left(line: float, rounds: int) -> Iterator[Left]:
    """The foreign connection begins when the transport has been sending for a while; new connections in each round."""
    for round_trip in ROUND_TRIPS[:2]:
        link = Link(line, round_trip / 2, 0.0, 0.0)
        backend = machine.choose("auto", CONTROL)
        shares: dict[str, list[float]] = {}
        streams: dict[str, int] = {}
        with star.up(Shape((link, link), backend, CONTROL, LINUX_WINDOW, _CONNECTIONS, 0)) as network:
            a, b = network.hosts
            for way in WAYS[:2] * rounds:
                streams[way], rate = _beside(a, b, way, line)
                shares.setdefault(way, []).append(rate * 8 / line)
        for way, found in shares.items():
            yield Left(line, round_trip, way, streams[way], median(found), 1 / (streams[way] + 1))


def _beside(a: Host, b: Host, way: str, line: float) -> tuple[int, float]:
    """Streams of the transport, and the bytes/s of a plain connection beside them."""
    variables = {"NCCL_SOCKET_IFNAME": a.interface, "BAGUA_NET_STREAMS": way}
    here = (compiled.harness(), libraries.plugin(), "ncclNetPlugin_v12", variables, (a.prefix, b.prefix))
    plan: dict[str, Any] = {"size": _SIZE, "window": _WINDOW, "patience": 120.0}
    with Pair(*here) as ours, Pair(*here) as foreign:
        ours.link()
        streams = len(ours.a.ask("report", name="x.s")["streams"])
        foreign.link_plain(b.address)
        enough = int(10 * _SECONDS_BESIDE * line / 8 / _SIZE)  # it is ended before that
        ours.a.tell("stream", name="x.s", sending=True, count=enough, **plan)
        ours.b.tell("stream", name="x.r", sending=False, count=enough, **plan)
        time.sleep(_SECONDS)
        few = max(_FEWEST, int(line / 8 / (streams + 1) * _SECONDS_BESIDE / _SIZE))
        _, got = foreign.plain_stream(count=few, **plan)
        if ours.a.has_answered() or ours.b.has_answered():
            raise HarnessError("the transport ended before the foreign connection did")
        return streams, got["bytes"] / got["seconds"]


def _expected(way: str, line: float, round_trip: float, loss: float) -> float:
    """Bytes/s that may be hoped for: it decides only how much is sent. By Mathis and others (1997) for each stream."""
    streams = {"auto": round_trip / 2.5e-3, PLAIN: 1.0}.get(way) or float(way)
    lost = (MTU - HEADERS) / round_trip * 1.22 / math.sqrt(loss) * streams if loss else math.inf
    return min(line / 8, streams * LINUX_WINDOW / round_trip, lost)
