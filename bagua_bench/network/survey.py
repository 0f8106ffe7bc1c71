"""Probes pairs of servers and compares the measured network with the one that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from bagua_bench.configuration import units
from bagua_bench.configuration.network_shape import HEADERS, MTU, SLOWEST, Shape, goes_by_the_clock
from bagua_bench.network import probe
from bagua_bench.network.star import Network
from bagua_bench.network.topology import tcp_of

_ALL_PAIRS = 4  # with more servers than this, not every pair is probed
_RATE_TOLERANCE = 0.1
_LATE = 0.05  # share of the packets
_RTT_TOLERANCE = (0.5e-3, 0.1)  # seconds, or this share of the round trip if that is more

CROWDED = 0.5
"""Share of the cores' time that an emulated run may use: beyond it waits for a core are no longer short. Two runs that
took 1.7 times as long as at a quarter of their pace used 0.66 and 0.68, at that 0.35 to 0.43 (docs/validation.md)."""

Pair = dict[str, Any]


def pairs(servers: int) -> list[tuple[int, int]]:
    """The pairs to probe, sender first: two servers in both directions, all pairs of three or four, otherwise a ring.

    Every server sends, and receives, at least once.
    """
    if servers > _ALL_PAIRS:
        return [(a, (a + 1) % servers) for a in range(servers)]
    if servers == 2:
        return [(0, 1), (1, 0)]
    return [(a, b) if (a + b) % 2 else (b, a) for a, b in combinations(range(servers), 2)]


def survey(network: Network) -> list[Pair]:
    """Probe the pairs: round-trip time in seconds, and bits/s of payload that TCP carries."""
    found = []
    for a, b in pairs(len(network.hosts)):
        sender, receiver = network.hosts[a], network.hosts[b]
        rtt = probe.rtt(sender, receiver)
        found.append({"from": a, "to": b, "rtt": rtt, "goodput": probe.goodput(sender, receiver, rtt)})
    return found


def wire_rate(goodput: float, frame: int) -> float:
    """Bits/s on a link that carries `goodput` bits/s of payload in full segments."""
    return goodput * (MTU + frame) / (MTU - HEADERS)


def describe(network: Network) -> dict[str, Any]:
    """The part of a record about the network that is known before anything is measured."""
    return {
        "backend": network.shape.backend,
        "commands": network.commands,
        "tcp": tcp_of(network.hosts[0]),
        "segments": network.shape.segments,
        "mtu": MTU,
        "before": None,
        "after": None,
        "drops": None,
        "late": None,
        "busy": None,
        "traffic": None,
        "flags": [],
    }


def crowded(busy: float | None, haste: float, shape: Shape) -> Iterator[str]:
    """A line on cores that had so much to do in an emulated run's timed steps that its times are theirs.

    It proposes no other pace where TCP goes by the clock.
    """
    if busy is None or busy <= CROWDED:
        return
    servers = range(len(shape.links))
    slower = f"; compute.haste={haste / 2:g} has it count for half as much"
    loss, trip = max(link.loss for link in shape.all_links), max(shape.rtt(a, b) for a, b in combinations(servers, 2))
    possible = haste / 2 >= SLOWEST and not goes_by_the_clock(shape.congestion, loss, 2 * trip)
    yield f"the cores were {busy:.0%} busy, so that steps took longer for it{slower if possible else ''}"


def flags(shape: Shape, frame: int, when: str, found: list[Pair]) -> Iterator[str]:
    """Lines on what is off: rates by over 10 %, round trips by over 10 % (or 0.5 ms if that is more) and the jitter."""
    for pair in found:
        a, b = pair["from"], pair["to"]
        name = f"{when}: servers {a} and {b}"
        rate, got = shape.rate(a, b), wire_rate(pair["goodput"], frame)
        if rate is not None and not _fits(shape, a, b, got / rate):
            yield f"{name}: {_rate(got)} instead of {_rate(rate)}"
        rtt, jitter = shape.rtt(a, b), shape.jitter(a, b)
        least, part = _RTT_TOLERANCE
        if abs(pair["rtt"] - rtt) > max(least, part * rtt) + jitter:
            yield f"{name}: round trip of {pair['rtt'] * 1e3:.2f}ms instead of {rtt * 1e3:.2f}ms"


def late(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """The share of the packets between two counts of `Backend.passed` that came late; None where nobody counts."""
    if before is None or after is None:
        return None
    passed = after[0] - before[0]
    return (after[1] - before[1]) / passed if passed else 0.0


def flags_within(drops: int, shape: Shape, late: float | None) -> Iterator[str]:
    """Lines on what went wrong during the run: packets that were dropped, or late, though nobody asked for it."""
    if drops and not any(link.loss for link in shape.all_links):
        yield f"{drops} packets were dropped by a full queue"
    if late is not None and late > _LATE:
        yield f"{late:.0%} of the packets came over 1 ms late: the emulator had too little processor time"


def _fits(shape: Shape, a: int, b: int, ratio: float) -> bool:
    """Whether a rate is as asked for; it may be lower where one TCP connection cannot fill the link."""
    return ratio <= 1 + _RATE_TOLERANCE and (ratio >= 1 - _RATE_TOLERANCE or not shape.can_fill(a, b))


def _rate(value: float) -> str:
    return units.text(float(f"{value:.3g}"), units.BITS_PER_SECOND)
