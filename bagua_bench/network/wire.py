"""Computes when packets leave and arrive: the rules of the link emulator, without clocks and descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from bagua_bench.configuration.network_shape import HEADERS, MTU, Link

_SEGMENT = MTU - HEADERS
_MUCH = 64 * 1024
"""A connection that has sent this many bytes carries data."""
OVERHEAD = 0.1e-3
"""Seconds that the emulator itself takes per direction, which count towards the latency that was asked for."""


def wire_bytes(nbytes: int) -> int:
    """Bytes on a wire for an IP packet of `nbytes` that may stand for several segments, headers of all included."""
    segments = max(1, -(-(nbytes - HEADERS) // _SEGMENT))
    return nbytes + HEADERS * (segments - 1)


class Line:
    """One direction of a link. It carries one packet at a time; the others wait in a queue of `limit` bytes.

    Without a bandwidth nothing waits. With `swing` (seconds, share) it has only that share of it for every other so
    many seconds.
    """

    def __init__(self, bandwidth: float | None, limit: int, swing: tuple[float, float] | None = None) -> None:
        self._per_byte = 8 / bandwidth if bandwidth else 0.0
        self._swing = swing
        self._limit = limit
        self._free = 0.0

    def send(self, now: float, nbytes: int) -> tuple[float, float] | None:
        """When a packet handed over at `now` starts and finishes leaving; None if it finds the queue full."""
        begin = max(now, self._free)
        slow = self._swing is not None and begin // self._swing[0] % 2 == 1
        per_byte = self._per_byte / self._swing[1] if self._swing and slow else self._per_byte
        end = begin + nbytes * per_byte
        if per_byte and end - now > self._limit * per_byte:
            return None
        self._free = end
        return begin, end


class Flows:
    """Limits of a server's single connections: each one that carries much data gets the next rate in turn.

    Control connections, which carry little, are not limited and take no turn. The same with `delays` (seconds).
    """

    def __init__(self, rates: Sequence[float], limit: int, delays: Sequence[float] = ()) -> None:
        self.tells_apart, self.drops = bool(rates or delays), 0
        self._rates, self._limit, self._delays = rates, limit, delays
        self._sent: dict[bytes, int] = {}
        self._lines: dict[bytes, tuple[Line, float]] = {}

    def leave(self, now: float, flow: bytes, nbytes: int) -> float | None:
        """When a packet that a connection hands over at `now` may go to the link; None if it is dropped."""
        if not self.tells_apart:
            return now
        if flow not in self._lines:
            self._sent[flow] = self._sent.get(flow, 0) + nbytes
            if self._sent[flow] < _MUCH:
                return now
            turn = len(self._lines)
            rate = self._rates[turn % len(self._rates)] if self._rates else None
            delay = self._delays[turn % len(self._delays)] if self._delays else 0.0
            self._lines[flow] = Line(rate, self._limit), delay
        line, delay = self._lines[flow]
        times = line.send(now, nbytes)
        self.drops += times is None
        return times and times[0] + delay


@dataclass
class Port:
    """A link: `up` to a switch, `down` from it, with delay, jitter and loss on the way down.

    It is a server's, or a site's, to the switch that joins the sites.
    """

    link: Link
    limit: int
    random: Random
    swing: tuple[float, float] | None = None
    drops: int = 0
    lost: int = 0
    up: Line = field(init=False)
    down: Line = field(init=False)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self.up = Line(self.link.bandwidth, self.limit, self.swing)
        self.down = Line(self.link.bandwidth, self.limit, self.swing)

    def leave(self, begin: float, nbytes: int, end: float = 0.0) -> tuple[float, float] | None:
        """When a packet starts and finishes arriving at the switch; None if it is dropped.

        It is handed over at `begin`, and if it comes from another link, until `end`.
        """
        times = self.up.send(begin, nbytes)
        self.drops += times is None
        return times and (times[0], max(times[1], end))

    def survivors(self, segments: int) -> list[tuple[int, int]]:
        """Which of a packet's segments are not lost on the way down: runs from one up to, without, another."""
        if not self.link.loss:
            return [(0, segments)]
        lost = [k for k in range(segments) if self.random.random() < self.link.loss]
        self.lost += len(lost)
        return [(a + 1, b) for a, b in pairwise([-1, *lost, segments]) if a + 1 < b]

    def arrive(self, begin: float, end: float, nbytes: int) -> tuple[float, float] | None:
        """From when to when a packet is received that arrives at the switch from `begin` to `end`; None if dropped.

        The segments of a packet pass through the switch one after the other, so two equal links take as long as one.
        Packets do not overtake each other.
        """
        times = self.down.send(begin, nbytes)
        if times is None:
            self.drops += 1
            return None
        passing = max(end, times[1])
        self._last = max(self._last, passing + self._delay())
        return self._last - (passing - times[0]), self._last

    def _delay(self) -> float:
        delay = self.link.latency
        if self.link.jitter:
            delay = self.random.gauss(delay, self.link.jitter)
        return max(0.0, delay - OVERHEAD)
