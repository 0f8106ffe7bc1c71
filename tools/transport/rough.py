"""Long paths that are not steady: what the transport and a plain TCP connection carry over them.

Always over the suite's own emulator, which knows such paths. It measures the group of ranks behind the torch backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import star
from tools.transport import lossy, wan
from tools.transport.bench import PLAIN

WAYS = ("4", "auto", PLAIN)
ROUND_TRIP = 0.08  # seconds
_JITTER = 2e-3  # seconds, standard deviation on each of two links
_LATE = 0.02  # seconds by which one connection each way is later than all others; of a plain one, the only one
_SWING = 0.2, 0.25  # every other 200 ms, a quarter of the rate
_SECONDS = 6.0  # that a transfer should take


@dataclass(frozen=True)
class Rough:
    """Medians over the rounds of one way to send over one path.

    of_line: the rate of the payload over all of a second transfer on a new connection, after one that is not counted,
    as a share of the line's mean rate, which carries headers, too. streams: in use at the end.
    """

    condition: str
    line: float  # bit/s
    round_trip: float  # seconds
    way: str
    streams: int
    of_line: float
    times_plain: float


def measure(line: float, rounds: int) -> Iterator[Rough]:
    """Every condition with every way in turn; line in bit/s."""
    link = Link(line, ROUND_TRIP / 2, 0.0, 0.0)
    plain = Shape((link, link), "link", wan.CONTROL, LINUX_WINDOW, wan.CONNECTIONS, 0)
    shaken = replace(link, jitter=_JITTER)
    conditions = {
        "steady": plain,
        "jitter": replace(plain, links=(shaken, shaken)),
        "one connection later": replace(plain, flow_delays=(_LATE, *[0.0] * (wan.CONNECTIONS - 1))),
        "rate that changes": replace(plain, swing=_SWING),
    }
    for condition, shape in conditions.items():
        mean = line * (1 + _SWING[1]) / 2 if shape.swing else line
        yield from _path(condition, shape, mean, rounds)


def _path(condition: str, shape: Shape, mean: float, rounds: int) -> Iterator[Rough]:
    size, counts = wan.messages(mean, ROUND_TRIP, 0.0, WAYS, _SECONDS)
    shares: dict[str, list[float]] = {}
    streams: dict[str, list[int]] = {}
    for _, way in lossy.in_turn(WAYS, rounds):
        # A new network each time: its first connection is the late one.
        with star.up(shape) as network:
            a, b = network.hosts
            with lossy.linked(a, b, way) as (pair, move):
                move(count=max(1, counts[way] // 2), size=size, window=wan.WINDOW, patience=120.0)
                began = time.monotonic()
                move(count=counts[way], size=size, window=wan.WINDOW, patience=120.0)
                seconds = time.monotonic() - began
                streams.setdefault(way, []).append(1 if way == PLAIN else wan.in_use(pair))
        shares.setdefault(way, []).append(counts[way] * size * 8 / seconds / mean)
    for way in WAYS:
        of_line = median(shares[way])
        one = (condition, shape.links[0].bandwidth or 0.0, ROUND_TRIP, way, round(median(streams[way])))
        yield Rough(*one, of_line, of_line / median(shares[PLAIN]))
