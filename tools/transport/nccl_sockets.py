"""Bagua-Net beside NCCL's own sockets, both behind NCCL's newest table, in turn; without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bagua_bench import libraries
from tools.transport import bench, compiled, shaped
from tools.transport.bench import Plugin, Sample
from tools.transport.nccl import SOCKETS, Nccl, lacks_sockets

OWN, ONE, FOUR = "Bagua-Net", "NCCL, one socket", "NCCL, four sockets"
FOUR_SOCKETS = {"NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "1"}
"""NCCL's variables for them. Without, as by default on most machines, one connection carries everything."""
UNLIMITED, SLOW, LATENCY = "unlimited", "one of four flows slow", "half round trip"
_RATES = (1.6e9, 1.6e9, 1.6e9, 0.32e9)  # bits/s
_KIB, _MIB = 2**10, 2**20
_MESSAGES = ((64 * _KIB, 16), (_MIB, 4), (16 * _MIB, 2), (64 * _MIB, 2))  # bytes, and how many are under way
_SMALL = (8, 8192)
_TOTAL = 2**31  # bytes of a transfer without a limit
_SECONDS = 1.0  # of one with limits


@dataclass(frozen=True)
class Beside:
    """Medians over the rounds of one way to send. value: bytes/s, or seconds of half a round trip.

    own_times: Bagua-Net's rate over this one's in the same round, or this half round trip over Bagua-Net's; the median
    of the rounds. Above 1 Bagua-Net is ahead.
    """

    network: str
    size: int
    window: int
    way: str
    value: float
    cpu_per_gb: float
    own_times: float
    of_ideal: float | None


def measure(nccl: Nccl, rounds: int) -> Iterator[Beside]:
    """Every network and size; ValueError where namespaces cannot be made."""
    if reason := lacks_sockets(nccl) or shaped.unavailable():
        raise ValueError(reason)
    samples = list(_samples(nccl, rounds))
    ideal = shaped.payload_rate(_RATES)
    for network, size, window in dict.fromkeys((network, s.size, s.window) for network, s in samples):
        alike = [s for of, s in samples if (of, s.size, s.window) == (network, size, window)]
        own = {s.round: _value(s) for s in alike if s.transport == OWN}
        for way in (way for way in (OWN, ONE, FOUR) if any(s.transport == way for s in alike)):
            of_way = [s for s in alike if s.transport == way]
            value, cpu = median(map(_value, of_way)), median(s.cpu_per_gb for s in of_way)
            ahead = [own[s.round] / _value(s) for s in of_way]
            times = median(1 / a if network == LATENCY else a for a in ahead)
            yield Beside(network, size, window, way, value, cpu, times, value / ideal if network == SLOW else None)


def _value(sample: Sample) -> float:
    return sample.half_round_trip or sample.rate


def _samples(nccl: Nccl, rounds: int) -> Iterator[tuple[str, Sample]]:
    harness, plugins = compiled.harness(), _ways(nccl)
    fast, slow = _plan(_TOTAL), _plan(shaped.payload_rate(_RATES) * _SECONDS)
    networks: dict[str, tuple[Sequence[str], Callable[[Plugin], Iterator[Sample]]]] = {
        UNLIMITED: ((OWN, ONE, FOUR), lambda plugin: bench.streams(harness, plugin, fast, plain=False)),
        SLOW: ((OWN, FOUR), lambda plugin: bench.streams(harness, plugin, slow, _RATES, plain=False)),
        LATENCY: ((OWN, ONE), lambda plugin: bench.latencies(harness, plugin, _SMALL, count=3000)),
    }
    for number in range(rounds):
        for network, (ways, samples) in networks.items():
            for way in ways[:: -1 if number % 2 else 1]:  # soon after each other: the machine differs by the second
                mine = (sample for sample in samples(plugins[way]) if sample.transport == plugins[way].name)
                yield from ((network, replace(sample, transport=way, round=number)) for sample in mine)


def _plan(total: float) -> Sequence[tuple[int, int, int]]:
    return [(size, window, max(20, int(total / size))) for size, window in _MESSAGES]


def _ways(nccl: Nccl) -> dict[str, Plugin]:
    library: Path = libraries.plugin()
    return {
        OWN: Plugin(library, f"ncclNetPlugin_v{nccl.interfaces[-1]}", {"BAGUA_NET_STREAMS": "4"}, nccl=nccl),
        ONE: Plugin(library, SOCKETS, {"NCCL_NSOCKS_PERTHREAD": "0", "NCCL_SOCKET_NTHREADS": "0"}, nccl=nccl),
        FOUR: Plugin(library, SOCKETS, FOUR_SOCKETS, nccl=nccl),
    }
