"""Long paths: what share of a line the transport fills with a fixed number of streams, and with one that it chooses.

Beside one plain TCP connection, over the backend that this machine has. It measures the group of ranks behind the torch
backend, whose callers wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from bagua_bench.configuration.network_shape import (
    AUTO,
    FEWEST_STREAMS,
    HEADERS,
    LINUX_WINDOW,
    MOST_STREAMS,
    MTU,
    STREAM_PER_SECONDS,
    Link,
    Shape,
)
from bagua_bench.network import machine, star
from bagua_bench.network.topology import Host
from bagua_bench.transport import watch
from tools.transport import lossy
from tools.transport.bench import PLAIN
from tools.transport.pair import HarnessError, Pair

WAYS = ("4", "auto", PLAIN, *(("auto, bbr", f"{PLAIN}, bbr") if "bbr" in machine.congestion_controls() else ()))
ROUND_TRIPS = (0.03, 0.08, 0.2)  # seconds, of the paths that are measured if nobody asks for others
CONTROL = "cubic"  # of the ways that name none
CONNECTIONS = MOST_STREAMS + 6  # for which queues have room: the most streams, and the others of a connection
_SECONDS, _ROUND_TRIPS = 3.0, 20.0  # that a transfer should take, and round trips beyond: it begins slowly
_WORTH_NAMING = 1e-3  # of a line
_BEFORE, _SECONDS_BESIDE = 20.0, 8.0  # before a connection beside others, and for it, with its fair share
_SIZE, WINDOW = 2**18, 64  # bytes of a message, at least; messages under way at a time
_FEWEST = 12  # messages; fewer would not tell a rate
_IDLE, _AFTER_IDLE = 3.0, 2**26  # seconds of a pause, and bytes to send after it
_FIRST_WINDOW = 10 * (MTU - HEADERS)  # bytes: RFC 6928


@dataclass(frozen=True)
class Path:
    """Medians over the rounds of one way to send over one path. rate: of the payload, bytes/s, over all of a transfer's
    time, beginning with the first message of a new connection; of_line: of the line's, which carries headers, too;
    times_plain: of a plain connection with the usual congestion control."""

    line: float  # bit/s
    round_trip: float  # seconds
    loss: float
    way: str
    rate: float
    of_line: float
    times_plain: float


@dataclass(frozen=True)
class Later:
    """Medians over the rounds of what a connection carries once it has begun.

    of_line: as `Path`, when as much as at first follows at once. after_idle: seconds for 64 MiB after a pause of 3 s.
    expected: for these at that rate, with a round trip and the least that a slow start takes, in which the windows of
    all streams double every round trip until they fill the line. (Where packets are lost, that is no expectation.)
    """

    line: float  # bit/s
    round_trip: float  # seconds
    loss: float
    way: str
    streams: int
    of_line: float
    after_idle: float
    expected: float


def measure(
    lines: Sequence[float], round_trips: Sequence[float], losses: Sequence[float], rounds: int
) -> Iterator[Path]:
    """Every path with every way in turn; lines in bit/s, seconds, shares of packets lost."""
    for path in product(lines, round_trips, losses):
        yield from _path(*path, rounds)


def _path(line: float, round_trip: float, loss: float, rounds: int) -> Iterator[Path]:
    size, counts = messages(line, round_trip, loss, WAYS)
    with _network(line, round_trip, loss) as (a, b):
        found = list(lossy.transfers(a, b, counts, rounds, size, WINDOW))
    seconds_of = {way: median(one.seconds for one in found if one.way == way) for way in WAYS}
    rates = {way: counts[way] * size / seconds_of[way] for way in WAYS}
    for way, rate in rates.items():
        yield Path(line, round_trip, loss, way, rate, rate * 8 / line, rate / rates[PLAIN])


def later(
    lines: Sequence[float], round_trips: Sequence[float], losses: Sequence[float], rounds: int
) -> Iterator[Later]:
    """What the transport's connections carry after their beginning, and after a pause; paths as in `measure`."""
    for path in product(lines, round_trips, losses):
        yield from _later(*path, rounds)


def _later(line: float, round_trip: float, loss: float, rounds: int) -> Iterator[Later]:
    ways = [way for way in WAYS if way != PLAIN and ", " not in way]
    size, counts = messages(line, round_trip, loss, ways)
    rates: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    streams: dict[str, list[int]] = {}
    with _network(line, round_trip, loss) as (a, b):
        for _, way in lossy.in_turn(ways, rounds):
            with lossy.linked(a, b, way) as (pair, move):
                plan = partial(move, size=size, window=WINDOW, patience=120.0)
                plan(count=counts[way])
                rates.setdefault(way, []).append(counts[way] * size / _seconds(plan, counts[way]))
                time.sleep(_IDLE)
                times.setdefault(way, []).append(_seconds(plan, _AFTER_IDLE // size))
                streams.setdefault(way, []).append(in_use(pair))
    for way in ways:
        rate, after_idle = median(rates[way]), median(times[way])
        number = round(median(streams[way]))
        expected = _AFTER_IDLE / rate + round_trip + _slow_start(line / 8, round_trip, number)
        yield Later(line, round_trip, loss, way, number, rate * 8 / line, after_idle, expected)


def _seconds(plan: Callable[..., object], count: int) -> float:
    began = time.monotonic()
    plan(count=count)
    return time.monotonic() - began


def _slow_start(rate: float, round_trip: float, streams: int) -> float:
    """Seconds that it takes longer than at the line's full rate, bytes/s."""
    lost, window, full = 0.0, float(streams * _FIRST_WINDOW), rate * round_trip
    while window < full:
        lost += (1 - window / full) * round_trip
        window *= 2
    return lost


@contextmanager
def _network(line: float, round_trip: float, loss: float) -> Iterator[tuple[Host, Host]]:
    link = Link(line, round_trip / 2, 0.0, loss)
    backend = machine.choose("auto", CONTROL)
    with star.up(Shape((link, link), backend, CONTROL, LINUX_WINDOW, CONNECTIONS, 0)) as network:
        a, b = network.hosts
        yield a, b


def messages(
    line: float, round_trip: float, loss: float, ways: Sequence[str], seconds: float = _SECONDS
) -> tuple[int, dict[str, int]]:
    """Bytes of a message, so that what is under way could fill two round trips; and how many messages by each way."""
    size = _SIZE
    while size * WINDOW < 2 * line / 8 * round_trip:
        size *= 2
    seconds += _ROUND_TRIPS * round_trip
    return size, {way: max(_FEWEST, int(_expected(way, line, round_trip, loss) * seconds / size)) for way in ways}


@dataclass(frozen=True)
class Left:
    """What one plain TCP connection gets of a line that the transport fills.

    share: of the line, median; streams: that carried something when it began, median; fair: what each of all
    connections would have if they had the same.
    """

    line: float  # bit/s
    round_trip: float  # seconds
    way: str
    streams: int
    share: float
    fair: float


def left(line: float, round_trip: float, rounds: int) -> Iterator[Left]:
    """The foreign connection begins when the transport has been sending for 20 s; new connections in each round."""
    ways = [way for way in WAYS if not way.startswith(PLAIN)]
    shares: dict[str, list[float]] = {}
    streams: dict[str, list[int]] = {}
    with _network(line, round_trip, 0.0) as (a, b):
        for _, way in lossy.in_turn(ways, rounds):
            number, rate = _beside(a, b, way, line, round_trip)
            streams.setdefault(way, []).append(number)
            shares.setdefault(way, []).append(rate * 8 / line)
    for way, found in shares.items():
        number = round(median(streams[way]))
        yield Left(line, round_trip, way, number, median(found), 1 / (number + 1))


def _beside(a: Host, b: Host, way: str, line: float, round_trip: float) -> tuple[int, float]:
    """Streams of the transport, and the bytes/s of a plain connection beside them."""
    size, _ = messages(line, round_trip, 0.0, [way])
    plan: dict[str, Any] = {"size": size, "window": WINDOW, "patience": 120.0}
    with lossy.linked(a, b, way) as (ours, _), lossy.linked(a, b, PLAIN) as (_, move):
        enough = int((_BEFORE + 40 * _SECONDS_BESIDE) * line / 8 / size)  # it is ended before that
        ours.a.tell("stream", name="x.s", sending=True, count=enough, **plan)
        ours.b.tell("stream", name="x.r", sending=False, count=enough, **plan)
        time.sleep(_BEFORE)
        streams = _busy(ours, line / 8)
        few = max(_FEWEST, int(line / 8 / (streams + 1) * _SECONDS_BESIDE / size))
        _, got = move(count=few, **plan)
        if ours.a.has_answered() or ours.b.has_answered():
            raise HarnessError("the transport ended before the foreign connection did")
        return streams, got["bytes"] / got["seconds"]


def _busy(pair: Pair, rate: float) -> int:
    """Connections of the first of two processes that carry a part worth naming of so many bytes/s."""
    pids = [pair.a.child.pid]
    before = watch.connections(pids)
    time.sleep(1.0)
    found = watch.flows(before, watch.connections(pids), 1.0)
    return sum(flow.sent > _WORTH_NAMING * rate for flow in found)


def in_use(pair: Pair) -> int:
    """Streams over which the first of two processes sends."""
    return sum(stream["in_use"] for stream in pair.a.ask("report", name="x.s")["streams"])


def _streams(way: str, round_trip: float) -> float:
    number, _, _ = way.partition(", ")
    if number == AUTO:
        return min(float(MOST_STREAMS), max(float(FEWEST_STREAMS), round_trip / STREAM_PER_SECONDS))
    return 1.0 if number == PLAIN else float(number)


def _expected(way: str, line: float, round_trip: float, loss: float) -> float:
    """Bytes/s that may be hoped for: it decides only how much is sent. By Mathis and others (1997) for each stream."""
    number, _, congestion = way.partition(", ")
    streams = _streams(way, round_trip)
    lost = (MTU - HEADERS) / round_trip * 1.22 / math.sqrt(loss) * streams if loss else math.inf
    if congestion and loss:  # no formula is known here; measured, a single connection has about so much of the line
        lost = line / 8 * (0.04 / round_trip if number == PLAIN else 1.0)
    return min(line / 8, streams * LINUX_WINDOW / round_trip, lost)
