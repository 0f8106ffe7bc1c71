"""When packets leave and arrive: the rules of the link emulator, free of clocks and descriptors."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from bagua_bench.network.shape import HEADERS, MTU, Link

_SEGMENT = MTU - HEADERS
OVERHEAD = 0.1e-3
"""Seconds that the emulator itself takes per direction; they are part of the latency that was asked for."""


def wire_bytes(nbytes: int) -> int:
    """Bytes on a wire for an IP packet of `nbytes` that may stand for several segments, headers of all included."""
    segments = max(1, -(-(nbytes - HEADERS) // _SEGMENT))
    return nbytes + HEADERS * (segments - 1)


class Line:
    """One direction of a link: carries one packet at a time, the others wait in a queue of `limit` bytes."""

    def __init__(self, bandwidth: float | None, limit: int) -> None:
        self._per_byte = 8 / bandwidth if bandwidth else 0.0
        self._patience = limit * self._per_byte
        self._free = 0.0

    def send(self, now: float, nbytes: int) -> tuple[float, float] | None:
        """When a packet handed over at `now` begins and ends to leave; None if it finds the queue full."""
        begin = max(now, self._free)
        end = begin + nbytes * self._per_byte
        if end - now > self._patience:
            return None
        self._free = end
        return begin, end


@dataclass
class Port:
    """A server's link: `up` to the switch, `down` from it, with delay, jitter and loss on the way down."""

    link: Link
    limit: int
    random: Random
    drops: int = 0
    lost: int = 0
    up: Line = field(init=False)
    down: Line = field(init=False)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self.up = Line(self.link.bandwidth, self.limit)
        self.down = Line(self.link.bandwidth, self.limit)

    def leave(self, now: float, nbytes: int) -> tuple[float, float] | None:
        """When a packet of this server's begins and ends to reach the switch; None if it is dropped."""
        times = self.up.send(now, nbytes)
        self.drops += times is None
        return times

    def arrive(self, begin: float, end: float, nbytes: int) -> float | None:
        """When the server has a packet that reaches the switch from `begin` to `end`; None if it gets lost.

        The segments of a packet pass through the switch one after the other, so two equal links take the time of one.
        Packets do not overtake each other.
        """
        if self.link.loss and self.random.random() < self.link.loss:
            self.lost += 1
            return None
        times = self.down.send(begin, nbytes)
        if times is None:
            self.drops += 1
            return None
        self._last = max(self._last, max(end, times[1]) + self._delay())
        return self._last

    def _delay(self) -> float:
        delay = self.link.latency
        if self.link.jitter:
            delay = self.random.gauss(delay, self.link.jitter)
        return max(0.0, delay - OVERHEAD)
