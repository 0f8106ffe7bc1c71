"""The requested network: one link per server, joined by a switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bagua_bench.configuration.cell import Cell, NetworkPart

MTU = 1500
HEADERS = 52
"""Bytes of IPv4, TCP and its time stamps in every segment; a full one carries MTU - HEADERS of payload."""
MOST_SERVERS = 200
"""The most servers of an emulated network; an 8-bit range of addresses holds them with some to spare."""
SEGMENTS = 45
"""Full segments in the largest packet that TCP hands over, 64 KiB."""
LINUX_WINDOW = 4 * 2**20
"""Bytes that one TCP connection may have under way with Linux's default buffers."""
LINK_KEYS = ("bandwidth", "latency", "jitter", "loss")
_LEAST_QUEUE = 1000  # packets
_PACKETS = 16  # least number of packets in a window


@dataclass(frozen=True)
class Link:
    """A server's link. The rate holds in both directions; latency, jitter and loss only for incoming packets."""

    bandwidth: float | None  # bits/s; None is unlimited
    latency: float  # seconds, one way
    jitter: float  # seconds, standard deviation of the latency
    loss: float  # fraction of packets

    def queue(self, windows: int) -> int:
        """Bytes that may wait for the link or be on it: 1.5 times its bandwidth-delay product plus all TCP windows.

        Queues then never overflow, so every lost packet is one that was asked for.
        """
        held = 1.5 * (self.bandwidth or 0.0) * self.latency / 8
        return int(max(_LEAST_QUEUE * MTU, held)) + windows


@dataclass(frozen=True)
class Shape:
    """A star of links.

    `connections` is how many TCP connections may share a link, `tcp_window` how many bytes each may have under way.
    `flow_rates` (bits/s) limit single connections, each of which gets the next rate in turn.
    """

    links: tuple[Link, ...]
    backend: str
    congestion: str
    tcp_window: int
    connections: int
    seed: int
    flow_rates: tuple[float, ...] = ()

    @property
    def segments(self) -> int:
        """The most segments that TCP hands over as one packet. With loss it is one, so each is lost by itself.

        With latency it is small enough for a window to be many packets, as it is on the networks that a scale model
        stands for. A connection that sends its window in two or three lumps would carry less than a window per round
        trip, by chance.
        """
        if any(link.loss for link in self.links):
            return 1
        if any(link.latency or link.jitter for link in self.links):
            return min(SEGMENTS, max(2, self.tcp_window // (_PACKETS * MTU)))
        return SEGMENTS

    def queue(self, server: int) -> int:
        """Length in bytes of the queues of a server's link."""
        return self.links[server].queue(self.tcp_window * self.connections)

    def rtt(self, a: int, b: int) -> float:
        """Round-trip time between two servers, seconds."""
        return self.links[a].latency + self.links[b].latency

    def rate(self, a: int, b: int) -> float | None:
        """Rate of the slower of two links, bits/s; None without a limit."""
        rates = [link.bandwidth for link in (self.links[a], self.links[b]) if link.bandwidth is not None]
        return min(rates, default=None)

    def can_fill(self, a: int, b: int) -> bool:
        """Whether one TCP connection can fill the link: no loss, no limit of its own, half of its window is enough."""
        lossless = not (self.links[a].loss or self.links[b].loss)
        return lossless and not self.flow_rates and (self.rate(a, b) or 0.0) * self.rtt(a, b) / 8 <= self.tcp_window / 2


def link_of(network: NetworkPart, changes: Mapping[str, float | None] | None = None) -> Link:
    """A server's link: the network's, except for the LINK_KEYS in `changes`."""
    common = {key: getattr(network, key) for key in LINK_KEYS}
    return Link(**{**common, **(changes or {})})


def shape_of(cell: Cell) -> Shape:
    """The network that a cell asks for."""
    network, cluster = cell.network, cell.cluster
    return Shape(
        links=tuple(link_of(network, cluster.server.get(str(i))) for i in range(cluster.servers)),
        backend=network.backend,
        congestion=network.congestion,
        tcp_window=network.tcp_window,
        connections=cluster.ranks_per_server**2 * (cluster.servers - 1),
        seed=cell.run.seed,
        flow_rates=network.flow_rates,
    )


def is_shaped(cell: Cell) -> bool:
    """Whether the cell runs on an emulated network; a simulated cell does not."""
    return cell.network.backend != "none" and cell.mode != "simulate"
