"""The requested network: one link per server, joined by a switch; of several sites, each has a switch and a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bagua_bench.configuration.cell import Cell, LinkPart, NetworkPart, TransportPart

MTU = 1500
HEADERS = 52
"""Bytes of IPv4, TCP and its time stamps in every segment; a full one carries MTU - HEADERS of payload."""
MOST_SERVERS = 200
"""The most servers of an emulated network; an 8-bit range of addresses holds them with some to spare."""
SEGMENTS = 45
"""Full segments in the largest packet that TCP hands over, 64 KiB."""
LINUX_WINDOW = 4 * 2**20
"""Bytes that one TCP connection may have under way with Linux's default buffers."""
AUTO = "auto"
"""The value of `transport.streams` with which Bagua-Net chooses their number."""
INT8 = "int8"
"""The value of `transport.wire` with which large sums of floats are lossy."""
FEWEST_STREAMS, MOST_STREAMS, MOST_IN_NCCL, STREAM_PER_SECONDS = 4, 512, 64, 0.5e-3
"""How it chooses what it connects: one for so many seconds of the round trip, within limits, as in cpp/core/tuning.h,
wire.h and settings.h. It uses as many of them as carry more than fewer would."""
SLOWEST = 1 / 16
"""The least `compute.haste`."""
LEAST_TIMEOUT = 0.2
"""Seconds after which TCP repeats what was not acknowledged, at the least (Linux: TCP_RTO_MIN)."""
LINK_KEYS = ("bandwidth", "latency", "jitter", "loss")
_LEAST_QUEUE = 1000  # packets
_PACKETS = 16  # least number of packets in a window


@dataclass(frozen=True)
class Link(LinkPart):
    """A link as it is built. The rate holds in both directions; latency, jitter and loss only for incoming packets."""

    def queue(self, windows: int) -> int:
        """Bytes that may wait for the link or be on it: 1.5 times its bandwidth-delay product plus all TCP windows.

        Queues then never overflow, so every lost packet is one that was asked for.
        """
        held = 1.5 * (self.bandwidth or 0.0) * self.latency / 8
        return int(max(_LEAST_QUEUE * MTU, held)) + windows


@dataclass(frozen=True)
class Shape:
    """A star of links; of several sites, a star of stars.

    `connections` is how many TCP connections may share a link, `tcp_window` how many bytes each may have under way.
    `flow_rates` (bits/s) limit single connections, each of which gets the next rate in turn. `wan` is the line of each
    of the `sites` to the others, as a server's link to its switch. `timeout`: the least of TCP's, seconds; longer where
    everything takes longer. `flow_delays` (seconds) hold back what single connections send, as `flow_rates` do.
    `swing`: for every other so many seconds, all links have only this share of their rate. The last two are for
    measuring the transport, with the backend `link` only.
    """

    links: tuple[Link, ...]
    backend: str
    congestion: str
    tcp_window: int
    connections: int
    seed: int
    flow_rates: tuple[float, ...] = ()
    sites: int = 1
    wan: Link | None = None
    timeout: float = LEAST_TIMEOUT
    flow_delays: tuple[float, ...] = ()
    swing: tuple[float, float] | None = None

    def site(self, server: int) -> int:
        """The site of a server; those of one site are consecutive."""
        return server * self.sites // len(self.links)

    def path(self, a: int, b: int) -> list[Link]:
        """The links between two servers."""
        own = [self.links[a], self.links[b]]
        return own if self.wan is None or self.site(a) == self.site(b) else [*own, self.wan, self.wan]

    @property
    def all_links(self) -> list[Link]:
        """Those of the servers, and the sites'."""
        return [*self.links, *filter(None, [self.wan])]

    @property
    def segments(self) -> int:
        """The most segments that TCP hands over as one packet. With loss it is one where netem would lose all of it.

        With latency it is small enough for a window to be many packets, as it is on the networks that a scale model
        stands for. A connection that sends its window in two or three lumps would carry less than a window per round
        trip, by chance.
        """
        if self.backend != "link" and any(link.loss for link in self.all_links):
            return 1
        if any(link.latency or link.jitter for link in self.all_links):
            return min(SEGMENTS, max(2, self.tcp_window // (_PACKETS * MTU)))
        return SEGMENTS

    def queue(self, server: int) -> int:
        """Length in bytes of the queues of a server's link."""
        return self.links[server].queue(self.tcp_window * self.connections)

    def wan_queue(self) -> int:
        """Length in bytes of the queues of a site's line."""
        servers, here = len(self.links), len(self.links) // self.sites
        crossing = self.connections * here * (servers - here) // max(servers - 1, 1)
        return 0 if self.wan is None else self.wan.queue(self.tcp_window * crossing)

    def rtt(self, a: int, b: int) -> float:
        """Round-trip time between two servers, seconds."""
        return sum(link.latency for link in self.path(a, b))

    def jitter(self, a: int, b: int) -> float:
        """Standard deviations of the latencies between two servers, together."""
        return sum(link.jitter for link in self.path(a, b))

    def rate(self, a: int, b: int) -> float | None:
        """Rate of the slowest link between two servers, bits/s; None without a limit."""
        return min((link.bandwidth for link in self.path(a, b) if link.bandwidth is not None), default=None)

    def can_fill(self, a: int, b: int) -> bool:
        """Whether one TCP connection can fill the link: no loss, no limit of its own, half of its window is enough."""
        lossless = not any(link.loss for link in self.path(a, b))
        return lossless and not self.flow_rates and (self.rate(a, b) or 0.0) * self.rtt(a, b) / 8 <= self.tcp_window / 2

    def limit(self, a: int, b: int) -> str:
        """What holds a single connection between two servers back; empty if it is the links' rate, or nothing asked."""
        if any(link.loss for link in self.path(a, b)):
            return "loss"
        if self.flow_rates:
            return "the limits of single connections"
        return "" if self.rate(a, b) is None or self.can_fill(a, b) else "its TCP window"


def link_of(network: NetworkPart | LinkPart, changes: Mapping[str, float | None] | None = None) -> Link:
    """A server's link: the network's, except for the LINK_KEYS in `changes`."""
    common = {key: getattr(network, key) for key in LINK_KEYS}
    return Link(**{**common, **(changes or {})})


def streams(transport: TransportPart, trip: float) -> int:
    """TCP connections over which a transport may move one message, where a round trip takes `trip` seconds."""
    if transport.backend != "bagua_net" and transport.plugin is None:
        return 1
    if transport.streams == AUTO:
        most = MOST_STREAMS if transport.plugin is None else MOST_IN_NCCL
        return min(most, max(FEWEST_STREAMS, math.ceil(trip / STREAM_PER_SECONDS)))
    return int(transport.streams or 1)


def longest_trip(cell: Cell) -> float:
    """Longest round trip between two servers that the network asks for, seconds."""
    network, cluster = cell.network, cell.cluster
    late = {int(number): link_of(network, changes).latency for number, changes in cluster.server.items()}
    near = [*late.values(), *[network.latency] * min(cluster.servers - len(late), 2)]
    if network.sites == 1:
        return sum(sorted(near)[-2:])
    here = cluster.servers // network.sites
    places = [range(site * here, (site + 1) * here) for site in range(network.sites)]
    worst = [max((late.get(k, network.latency) for k in place), default=0.0) for place in places]
    return max(sum(sorted(near)[-2:]), sum(sorted(worst)[-2:]) + 2 * network.wan.latency)


def goes_by_the_clock(congestion: str, loss: float, trip: float) -> bool:
    """Whether a connection that loses packets speeds up by the clock, instead of so much per round trip.

    BBR does; CUBIC where it is faster than Reno, its region of long round trips and few losses (RFC 9438, 4.3 and 5.1).
    A scale model of another pace would carry another share of the line.
    """
    return loss > 0 and (congestion == "bbr" or (congestion == "cubic" and trip > cubic_beyond(loss)))


def cubic_beyond(loss: float) -> float:
    """The round trip beyond which CUBIC is faster than Reno: windows of 1.22 / sqrt(p) and 1.054 (trip / p)^(3/4)."""
    return math.pow(1.22 / 1.054, 4 / 3) * math.pow(loss, 1 / 3)


def shape_of(cell: Cell) -> Shape:
    """The network that a cell asks for."""
    network, cluster = cell.network, cell.cluster
    return Shape(
        links=tuple(link_of(network, cluster.server.get(str(i))) for i in range(cluster.servers)),
        backend=network.backend,
        congestion=network.congestion,
        tcp_window=network.tcp_window,
        connections=streams(cell.transport, longest_trip(cell)) * cluster.ranks_per_server**2 * (cluster.servers - 1),
        seed=cell.run.seed,
        flow_rates=network.flow_rates,
        sites=network.sites,
        wan=link_of(network.wan) if network.sites > 1 else None,
        timeout=LEAST_TIMEOUT / min(cell.haste, 1.0),
    )


def is_shaped(cell: Cell) -> bool:
    """Whether the cell runs on an emulated network; a simulated cell does not."""
    return cell.network.backend != "none" and cell.mode != "simulate"
