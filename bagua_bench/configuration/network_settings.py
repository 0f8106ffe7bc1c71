"""Checks the requested network, and turns texts with units into plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bagua_bench.configuration import plain, units
from bagua_bench.configuration.cell import Cell, ClusterPart, LinkPart, NetworkPart
from bagua_bench.configuration.network_shape import (
    LINK_KEYS,
    MOST_SERVERS,
    Link,
    cubic_beyond,
    goes_by_the_clock,
    link_of,
    longest_trip,
)

_UNITS: dict[str, Mapping[str, float]] = {
    "bandwidth": units.BITS_PER_SECOND,
    "latency": units.LATENCY,
    "jitter": units.LATENCY,
    "loss": units.FRACTION,
}


_WAN = "network.wan"
_LEAST_RATE = 8000  # bits/s
_LOSS_MODELLED = 0.1  # share of packets; with more, time-outs decide, and TCP's response function does not hold


def parts(network: Mapping[str, Any], cluster: Mapping[str, Any]) -> tuple[NetworkPart, ClusterPart]:
    """Convert the texts of the groups `network` and `cluster` to bits/s, seconds, bytes and fractions.

    The backend becomes `none` if nothing is asked for. ValueError for a text that cannot be read.
    """
    for key, example in (("server", "server.1.bandwidth=100mbit"), ("slow_ranks", "slow_ranks.1=1.5")):
        if not isinstance(cluster[key], dict):
            raise ValueError(f"cluster.{key}={cluster[key]}: expected a number after it, as in cluster.{example}")
    plain_network = {
        **network,
        **_plain_link("network", {key: network[key] for key in LINK_KEYS}),
        "tcp_window": int(units.parse("network.tcp_window", network["tcp_window"], units.BYTES)),
        "flow_rates": [units.parse("network.flow_rates", r, units.BITS_PER_SECOND) for r in network["flow_rates"]],
        "wan": _plain_link(_WAN, network["wan"]),
    }
    plain_cluster = {
        **cluster,
        "server": {str(k): _plain_link(f"cluster.server.{k}", link) for k, link in cluster["server"].items()},
        "slow_ranks": {str(rank): factor for rank, factor in cluster["slow_ranks"].items()},
        "physics": cluster["physics"] or {},
    }
    made = plain.load(NetworkPart, plain_network, "network"), plain.load(ClusterPart, plain_cluster, "cluster")
    nothing = made[0].backend == "auto" and not _asked(*made)
    return (replace(made[0], backend="none"), made[1]) if nothing else made


def _links(network: NetworkPart, cluster: ClusterPart) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    """Where values of links are given, and the values."""
    yield "network", _values(network)
    yield _WAN, _values(network.wan)
    yield from ((f"cluster.server.{number}", link) for number, link in cluster.server.items())


def _values(given: NetworkPart | LinkPart) -> dict[str, float | None]:
    return {key: getattr(given, key) for key in LINK_KEYS}


def _asked(network: NetworkPart, cluster: ClusterPart) -> str:
    """The first setting that asks for something, as the user would write it; empty if there is none."""
    for path, link in _links(network, cluster):
        for key in LINK_KEYS:
            if value := link.get(key):
                return f"{path}.{key}={text(key, value)}"
    return "network.flow_rates" if network.flow_rates else ""


def problems(cell: Cell) -> Iterator[str]:
    """Problems of the groups `network` and `cluster`, one line each."""
    network, cluster = cell.network, cell.cluster
    asked = _asked(network, cluster)
    real, servers, sites = cell.mode != "simulate", cluster.server.items(), network.sites
    if sites < 1 or cluster.servers % sites:
        fits = ", ".join(str(number) for number in range(1, cluster.servers + 1) if cluster.servers % number == 0)
        servers_given = f"cluster.servers={cluster.servers}"
        yield f"network.sites={sites}: {servers_given} do not fill them equally; allowed: {fits}"
    if real and network.backend == "none" and asked:
        yield f"{asked}: network.backend=none shapes nothing; allowed: auto, netem, link"
    if real and network.backend != "none" and not 2 <= cluster.servers <= MOST_SERVERS:
        yield f"cluster.servers={cluster.servers}: an emulated network joins 2 to {MOST_SERVERS} servers"
    if network.flow_rates and network.backend == "netem":
        yield "network.flow_rates: netem does not tell connections apart; allowed: network.backend=auto or link"
    if min(network.flow_rates, default=_LEAST_RATE) < _LEAST_RATE:
        yield f"network.flow_rates={min(network.flow_rates):.10g}bit: must be at least 8kbit"
    if real and network.software_delay:
        yield f"network.software_delay=true: only simulated, and mode={cell.mode}; allowed: false"
    if network.tcp_window < 4096:
        yield f"network.tcp_window={network.tcp_window}B: must be at least 4096B"
    for path, given in _links(network, cluster):
        yield from _loss_problems(cell, path, given.get("loss") or 0.0)
    yield from _link_problems("network", _values(network), link_of(network))
    yield from _link_problems(_WAN, _values(network.wan), link_of(network.wan), _WAN)
    for key, value in _values(network.wan).items() if sites == 1 else ():
        if value:
            yield f"{_WAN}.{key}={text(key, value)}: network.sites=1 has no line to another; allowed: 2 or more"
    for server, changes in servers:
        yield from _not_below(f"cluster.server.{server}", server, cluster.servers)
        yield from _link_problems(f"cluster.server.{server}", changes, link_of(network, changes))
    for rank, factor in cluster.slow_ranks.items():
        yield from _not_below(f"cluster.slow_ranks.{rank}", rank, cluster.ranks)
        if not 1 <= factor < math.inf:
            yield f"cluster.slow_ranks.{rank}={factor}: expected a factor on the rank's compute time, at least 1"


def _loss_problems(cell: Cell, path: str, loss: float) -> Iterator[str]:
    """Problems of a loss with how it is simulated, or with the pace of an emulation."""
    asked, control = f"{path}.loss={text('loss', loss)}", cell.network.congestion
    if cell.mode == "simulate" and loss > _LOSS_MODELLED:
        yield f"{asked}: TCP's rate under loss is known up to {text('loss', _LOSS_MODELLED)}; allowed: no more"
    pace = f"compute.haste={cell.haste:g}"
    if loss and cell.haste > 1:
        yield f"{pace}: TCP delays its acknowledgements as long as ever, and {asked}; allowed: 1 or less"
    elif cell.haste < 1 and goes_by_the_clock(control, loss, longest_trip(cell) / cell.haste):
        least = longest_trip(cell) / cubic_beyond(loss)
        slower = f"{math.ceil(least * 1000) / 1000:g} to " if control == "cubic" and least < 1 else ""
        allowed = f"allowed: {slower}1, or any with network.congestion=reno"
        yield f"{pace}: network.congestion={control} goes by the clock where {asked}; {allowed}"


def _link_problems(path: str, given: Mapping[str, float | None], link: Link, common: str = "network") -> Iterator[str]:
    """Problems of the given values, and of the link that they and those of the group `common` make."""
    bandwidth, loss = given.get("bandwidth"), given.get("loss")
    if bandwidth is not None and bandwidth < _LEAST_RATE:
        yield f"{path}.bandwidth={text('bandwidth', bandwidth)}: must be at least 8kbit; null is unlimited"
    if loss is not None and not 0 <= loss <= 0.5:
        yield f"{path}.loss={text('loss', loss)}: must be at most 50%"
    if link.jitter and link.bandwidth is None:
        yield (
            f"{path}.jitter={text('jitter', link.jitter)}: needs {common}.bandwidth, "
            "because packets would overtake each other without a link that carries one at a time"
        )


def _not_below(path: str, number: str, limit: int) -> Iterator[str]:
    if not number.isdecimal() or int(number) >= limit:
        yield f"{path}: no such {path.split('.')[1].removeprefix('slow_').rstrip('s')}; allowed: 0 to {limit - 1}"


def text(key: str, value: float) -> str:
    """The value of a key of LINK_KEYS as a user writes it: ('latency', 0.005) is '5ms'."""
    return units.text(value, _UNITS[key])


def _plain_link(path: str, given: Any) -> dict[str, float | None]:
    if not isinstance(given, dict):
        raise ValueError(f"{path}={given}: expected one of its keys: {', '.join(LINK_KEYS)}")
    link: dict[str, float | None] = {}
    for key, value in given.items():
        if key not in LINK_KEYS:
            raise ValueError(f"{path}.{key}={value}: no such key; allowed in {path}: {', '.join(LINK_KEYS)}")
        unlimited = key == "bandwidth" and value is None
        link[key] = None if unlimited else units.parse(f"{path}.{key}", value, _UNITS[key])
    return link
