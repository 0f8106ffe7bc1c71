"""A cluster as the simulator knows it: physical parameters and what a cell asks of the network. No torch import."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from bagua_bench.configuration.cell import Cell, LinkPart
from bagua_bench.configuration.network_shape import link_of, streams
from bagua_bench.configuration.physics import BUFFER, Physics, physics_of

MSS = 1448
"""Payload of a full TCP segment, bytes."""
PART = 16384
"""Bytes of the smallest part of a message that Bagua-Net gives one of its streams (cpp/core/tuning.h)."""


@dataclass(frozen=True)
class Links:
    """What a cell asks of the links; bytes/s, seconds, fractions. `line` None: the cluster's own.

    Where servers differ, `latency` is half the longest round trip between two of them, `ring` what messages take to the
    next one in a ring, and the slowest line and the greatest loss count.
    """

    line: float | None = None
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    congestion: str = "cubic"
    buffer: float = BUFFER
    software: bool = False
    """Whether software adds the latency."""
    flows: tuple[float, ...] = ()
    """Most that single TCP connections may carry, each of which gets the next limit in turn; none: no limit."""
    streams: int = 1
    """TCP connections over which a transport moves one message."""
    grouped: bool = False
    """Whether collectives are those of Bagua-Net's groups, with one connection between two ranks."""
    ring: tuple[tuple[float, float], ...] = ()
    """Half the round trips between a server and the next one, and the share of the servers that have each; none:
    `latency`, as all are alike."""
    sites: int = 1
    far: Links | None = None
    """Between servers of two sites: what both their links and the sites' lines ask for, which all servers of a site
    share."""

    def at_once(self) -> Links:
        """The links without any latency."""
        return self.but(latency=0.0, ring=(), jitter=0.0)

    def but(self, **values: Any) -> Links:
        """The links with other values, also between sites."""
        return replace(self, far=self.far and self.far.but(**values), **values)


@dataclass(frozen=True)
class Layout:
    """Number of servers, and of ranks on each."""

    servers: int
    per_server: int

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.servers * self.per_server


@dataclass(frozen=True)
class Cluster:
    """Physics, network and layout, and the few quantities that all cost formulas share."""

    physics: Physics
    network: Links
    layout: Layout

    @property
    def sites(self) -> int:
        """How many sites the servers are spread over."""
        return min(self.network.sites, self.layout.servers)

    @property
    def far(self) -> Cluster | None:
        """The cluster as it would be if any two servers were in different sites; None if there is one site."""
        if self.sites == 1 or self.network.far is None:
            return None
        return replace(self, network=self.network.far)

    @property
    def lines(self) -> Cluster | None:
        """The sites, each with its line, as servers of a cluster; None if there is one site."""
        return None if self.far is None else replace(self.far, layout=Layout(self.sites, self.layout.per_server))

    @property
    def reach(self) -> float:
        """One-way latency between the servers that are farthest apart, seconds."""
        return self.latency if self.far is None else self.far.latency

    @property
    def line(self) -> float:
        """Rate of an interface, bytes/s."""
        asked = self.network
        line = asked.line or self.physics.line
        return min(line, self.physics.shaped) if asked.software and (asked.latency or asked.jitter) else line

    def goodput(self, efficiency: float, together: int, limit: float = math.inf) -> float:
        """Bytes/s of payload through an interface when `together` servers wait for each other.

        limit: bytes/s that its connections may carry, headers included.
        """
        return min(self.line, limit) * efficiency * math.pow(max(together, 2) / 2, -self.physics.efficiency_fade)

    @property
    def latency(self) -> float:
        """One-way latency between servers, seconds; with jitter, the latest of many messages counts."""
        return self._late(self.network.latency)

    @property
    def hops(self) -> list[tuple[float, bool, float]]:
        """One-way latencies of a ring's hops, whether they are between sites, and the share of each.

        As many are between sites as there are sites.
        """
        near = [(self._late(asked), False, share) for asked, share in self.network.ring] or [(self.latency, False, 1.0)]
        if self.sites == 1:
            return near
        between = self.sites / self.layout.servers
        return [*((late, far, (1 - between) * share) for late, far, share in near), (self.reach, True, between)]

    def _late(self, asked: float) -> float:
        late = self.network.jitter * math.sqrt(2 * math.log(max(self.layout.servers, 2)))
        return self.physics.latency + asked + late

    def streams(self, nbytes: float) -> int:
        """How many of a transport's streams have a part of a message of nbytes."""
        return max(1, min(self.network.streams, int(nbytes // PART)))

    def stall(self, nbytes: float, rate: float, streams: int, limit: float = math.inf) -> float:
        """Time that nbytes on one connection of `rate` wait for its window, at most `limit`, to open.

        Every window beyond the first takes a cycle. So many streams have a window each.
        """
        window, packets = min(streams * self.window, limit), streams * self.packets
        packet = min(self.physics.packet, window / packets)
        return max(0.0, nbytes / window - 1) * (self.cycle(window, rate, packet, packets, 2) - window / rate)

    @property
    def window(self) -> float:
        """Most bytes that a TCP connection has under way."""
        return self.physics.window * self.network.buffer / BUFFER

    @property
    def packets(self) -> float:
        """Least number of packets in a window."""
        return self.physics.packets if self.network.latency or self.network.jitter else 1.0

    def forwarding(self, nbytes: float, between_sites: bool = False) -> float:
        """Seconds that the last packet of a message takes on the second of two links, which pass it on as a whole.

        Between sites there are the lines of both and two servers' links.
        """
        own = min(self.physics.packet, self.window / self.packets, nbytes) / self.line
        return own if self.far is None or not between_sites else self.far.forwarding(nbytes) + 2 * own

    def cycle(self, window: float, rate: float, packet: float, packets: float, queues: int = 1) -> float:
        """Seconds from one window to the next: the round trip of its last packet, or its sending, if that is longer.

        Packets also wait for others on the line, s u / (2 (1 - u)) for a service of s at a utilisation of u (Pollaczek
        and Khinchine, constant service); with u = sending / cycle, the cycle solves a quadratic equation. A window of
        a single packet does not wait for packets of its own. window, packet: bytes; rate: bytes/s; packets: number of
        them in a window; queues: 2 where acknowledgements wait behind what is sent the other way.
        """
        trip, sending = 2 * self.latency + packet / rate, window / rate
        wait = 2 * queues * sending * packet / rate * (1 - 1 / packets)
        return (trip + sending + math.sqrt((trip - sending) ** 2 + wait)) / 2

    def connection(self, streams: int) -> float:
        """Rate that limits of single connections leave one of so many streams, bytes/s.

        Streams carry what each of them can. The slowest connection counts, as all wait for it.
        """
        flows = self.network.flows
        turns = [sum(flows[(first + k) % len(flows)] for k in range(streams)) for first in range(len(flows))]
        return min(turns, default=math.inf)

    @property
    def lossy(self) -> float:
        """Rate of a TCP connection that only losses limit, bytes/s: Mathis (Reno) or RFC 9438 (CUBIC).

        Without a round trip it is unlimited.
        """
        p, trip = self.network.loss, 2 * self.latency
        if p <= 0:
            return math.inf
        if self.network.congestion == "bbr":
            return self.line * (1 - p)
        if trip == 0:
            return math.inf
        reno = MSS / trip * 1.22 / math.sqrt(p)
        if self.network.congestion == "reno":
            return reno
        return max(reno, 1.054 * MSS / (math.sqrt(math.sqrt(trip)) * math.pow(p, 0.75)))


def cluster_of(cell: Cell, physics: Physics | None = None) -> Cluster:
    """The cluster that a cell describes."""
    asked, cluster = cell.network, cell.cluster
    links = [link_of(asked, changes) for changes in cluster.server.values()]
    others = cluster.servers - len(links)
    links += [link_of(asked)] * min(others, 2)
    latencies = sorted((link.latency for link in links), reverse=True)
    rates = [link.bandwidth for link in links if link.bandwidth is not None]
    network = Links(
        line=min(rates) / 8 if rates else None,
        latency=sum(latencies[:2]) / len(latencies[:2]),
        jitter=max(link.jitter for link in links),
        loss=max(link.loss for link in links),
        congestion=asked.congestion,
        buffer=float(asked.tcp_window),
        software=asked.software_delay,
        flows=tuple(rate / 8 for rate in asked.flow_rates),
        grouped=cell.transport.backend == "bagua_net",
        ring=_ring(cell) if len(set(latencies)) > 1 else (),
    )
    network = replace(network, streams=streams(cell.transport, 2 * network.latency))
    if asked.sites > 1:
        far = _between(network, asked.wan)
        far = replace(far, streams=streams(cell.transport, 2 * far.latency))
        network = replace(network, sites=asked.sites, far=far)
    physics = physics_of(cluster, cell.transport.name) if physics is None else physics
    return Cluster(physics, network, Layout(cluster.servers, cluster.ranks_per_server))


def _ring(cell: Cell) -> tuple[tuple[float, float], ...]:
    """Half the round trips from every server to the next, and their shares."""
    servers, asked = cell.cluster.servers, cell.network
    late = {int(number): link_of(asked, changes).latency for number, changes in cell.cluster.server.items()}
    touched = {place for number in late for place in (number, (number - 1) % servers)}
    found = Counter((late.get(a, asked.latency) + late.get((a + 1) % servers, asked.latency)) / 2 for a in touched)
    found[asked.latency] += servers - len(touched)
    return tuple((trip, number / servers) for trip, number in found.items() if number)


def _between(near: Links, wan: LinkPart) -> Links:
    """What two servers of different sites see of their own links and of the sites' lines."""
    rates = [rate for rate in (near.line, wan.bandwidth and wan.bandwidth / 8) if rate is not None]
    return replace(
        near,
        line=min(rates, default=None),
        latency=near.latency + wan.latency,
        ring=(),
        jitter=math.hypot(near.jitter, wan.jitter),
        loss=1 - (1 - near.loss) * (1 - wan.loss),
    )
