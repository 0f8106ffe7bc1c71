"""Throughput, latency and CPU time of a NCCL net plugin and of one plain TCP connection, in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tools.transport import shaped
from tools.transport.nccl import Nccl
from tools.transport.pair import GROUP, HarnessError, Pair

PLAIN = "plain connection"
PLAIN_TWO = "plain connection each way"


@dataclass
class Plugin:
    """A library to drive, through a table of NCCL's or as the torch backend's group, and its environment."""

    library: Path
    symbol: str
    environment: Mapping[str, str] = field(default_factory=dict)
    first_port: int = 0  # which of the sender's connections is the first that carries data
    nccl: Nccl | None = None  # whose loader finds the table, or whose own it is

    @property
    def name(self) -> str:
        """For the tables."""
        return f"{self.library.name} {self.symbol.rpartition('_')[2] if self.symbol != GROUP else 'group'}"


@dataclass
class Sample:
    """One measurement; rates in bytes/s, times in seconds."""

    transport: str
    size: int
    window: int
    round: int
    rate: float = 0.0
    cpu_per_gb: float = 0.0  # sender and receiver
    half_round_trip: float = 0.0
    p99: float = 0.0


@contextmanager
def site(
    veth: bool, own_cores: bool = False
) -> Iterator[tuple[tuple[Sequence[str], Sequence[str]], str, str, shaped.Site | None]]:
    """Prefixes of both processes, interface, the receiver's address, and the sending side if there are namespaces.

    `own_cores`: each process stays on a core of its own, as on two machines. Otherwise CPU times depend on whether the
    scheduler puts both on one core.
    """
    if not veth:
        yield ((), ()), "lo", "127.0.0.1", None
        return
    cores = sorted(os.sched_getaffinity(0))
    pins = [["taskset", "--cpu-list", str(core)] if own_cores else [] for core in (cores[0], cores[len(cores) // 2])]
    with shaped.pair() as (a, b):
        yield ([*a.prefix, *pins[0]], [*b.prefix, *pins[1]]), a.interface, b.address, a


def streams(
    harness: Path,
    plugin: Plugin,
    messages: Sequence[tuple[int, int, int]],
    rates: Sequence[float] = (),
    rounds: int = 1,
    idle: int = 20,
    veth: bool = True,
    plain: bool = True,
    link: float | None = None,
    changing: Sequence[Sequence[float]] = (),
    every: float = 0.2,
) -> Iterator[Sample]:
    """One-way transfers of (size, window, count), the plugin and a plain connection in turn, flows limited to `rates`.

    The plain connection has the first of the rates. Or all flows together are limited to `link`; then CPU time is
    compared, and each process has a core of its own. Bits/s. Every round makes new connections. changing: limits that
    each flow has in turn while messages go, each for `every` seconds.
    """
    with site(veth or bool(rates or link), own_cores=link is not None) as (prefixes, interface, address, sender):
        variables = {"NCCL_SOCKET_IFNAME": interface, **plugin.environment}
        for number in range(rounds):
            with Pair(harness, plugin.library, plugin.symbol, variables, prefixes, nccl=plugin.nccl) as pair:
                pair.link()
                ports = pair.a.ask("state")["ports"][plugin.first_port :]
                own = pair.link_plain(address) if plain else None
                if rates or link:
                    assert sender is not None
                    limits = dict(zip(ports, rates, strict=False))
                    shaped.limit_flows(sender, limits | ({own: rates[0]} if own and rates else {}), link)
                for size, window, count in messages:
                    plan: dict[str, Any] = {"size": size, "window": window, "idle": idle}
                    assert sender is not None or not changing
                    with shaped.changing(sender, changing, every) if sender and changing else nullcontext():
                        both = pair.stream(count=count, **plan)
                    yield sample(plugin.name, size, window, number, both)
                    if plain:
                        fewer = max(20, int(count * rates[0] / sum(rates))) if rates else count
                        yield sample(PLAIN, size, window, number, pair.plain_stream(count=fewer, **plan))


def sample(name: str, size: int, window: int, number: int, both: tuple[dict[str, Any], dict[str, Any]]) -> Sample:
    """A sample from the outcomes of sender and receiver."""
    sent, got = both
    if not got["seconds"] or not sent["bytes"]:
        raise HarnessError(f"{name}: nothing was measured; more messages are needed")
    cpu = sent["cpu"] / sent["bytes"] + got["cpu"] / got["bytes"]
    return Sample(name, size, window, number, rate=got["bytes"] / got["seconds"], cpu_per_gb=cpu * 1e9)


def latencies(
    harness: Path, plugin: Plugin, sizes: Sequence[int], rounds: int = 1, count: int = 5000, veth: bool = True
) -> Iterator[Sample]:
    """Half round trips with callers that spin, each on a core of its own except over lo."""
    with site(veth, own_cores=True) as (prefixes, interface, address, _):
        variables = {"NCCL_SOCKET_IFNAME": interface, **plugin.environment}
        for number in range(rounds):
            with Pair(harness, plugin.library, plugin.symbol, variables, prefixes, nccl=plugin.nccl) as pair:
                pair.link()
                pair.link_back()
                pair.link_plain(address)
                pair.link_plain(address, "q")
                for size in sizes:
                    plan: dict[str, Any] = {"size": size, "count": count, "idle": 0}
                    for name, (first, _) in (
                        (plugin.name, pair.pingpong(**plan)),
                        (PLAIN, pair.plain_pingpong(**plan)),
                        (PLAIN_TWO, pair.plain_pingpong(back="q", **plan)),
                    ):
                        yield Sample(name, size, 1, number, half_round_trip=first["median"], p99=first["p99"])


def summary(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Medians over the rounds, with the range of the rates, per transport, size and window."""
    keys = dict.fromkeys((s.transport, s.size, s.window) for s in samples)
    rows = []
    for transport, size, window in keys:
        own = [s for s in samples if (s.transport, s.size, s.window) == (transport, size, window)]
        row = {"transport": transport, "size": size, "window": window, "rounds": len(own)}
        for key in ("rate", "cpu_per_gb", "half_round_trip", "p99"):
            row[key] = median(asdict(s)[key] for s in own)
        rows.append({**row, "rate_range": [min(s.rate for s in own), max(s.rate for s in own)]})
    return rows
