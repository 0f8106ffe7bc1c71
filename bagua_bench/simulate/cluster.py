"""A cluster as the simulator knows it: physical parameters and what a cell asks of the network. No torch import."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from bagua_bench.configuration.cell import Cell, ClusterPart
from bagua_bench.configuration.network_shape import link_of

MSS = 1448
"""Payload of a full TCP segment, bytes."""
BUFFER = 4.0 * 2**20
"""Size of the socket buffers that windows are calibrated with, bytes."""


@dataclass(frozen=True)
class Physics:
    """Parameters of a cluster, in seconds, bytes and bytes/s; `bagua_bench.calibrate.parameters` gives their ranges."""

    line: float = 12.5e9
    """Rate of a server's network interface where the network group sets none."""
    shaped: float = math.inf
    """The same once a delay is added in software, whose single queue handles only so many packets per second."""
    efficiency_ring: float = 0.95
    """Share of the line rate that payload gets in ring collectives: headers, chunk boundaries."""
    efficiency_direct: float = 0.85
    """The same in exchanges with several peers, whose flows collide."""
    efficiency_fade: float = 0.0
    """Exponent by which both fall with half the servers that wait for each other: emulated ones share the cores."""
    connection: float = 2.5e9
    """Rate of the software behind one connection, however fast the line is."""
    process: float = 5e9
    """The same for one process with many connections."""
    ring: float = 4e9
    """Rate of a ring's software from one server to the next."""
    channels: float = 4.0
    """Connections of a ring from one server to the next."""
    fade: float = 0.0
    """Exponent by which the rate `ring` falls with the number of servers: all wait for the slowest flow."""
    latency: float = 15e-6
    """One-way latency of a message between servers, without what the network group adds."""
    ring_hop: float = 1.0
    """One-way latencies per hop of a ring: two if the receiver first says that it is ready, as in gloo's TCP pairs."""
    segments: float = 1.0
    """Segments of a ring's chunk in flight at a time; with several, the latency of a hop hides behind the others."""
    hop: float = 1.0
    """One-way latencies per direct send: more than one if sender and receiver agree first."""
    gather_hop: float = 1.0
    """One-way latencies of an all-gather per server passed: 1 is a ring; at least `hop` in all, as in direct sends."""
    window: float = 4 * 2**20
    """Most bytes a connection has in flight with socket buffers of 4 MiB; proportional to the size of the buffers."""
    incast: float = math.inf
    """Most bytes that many senders have in flight to one interface; a switch's port drops those beyond its queue."""
    packet: float = 0.0
    """Bytes of a packet that a link forwards only as a whole: an emulator is handed 64 KiB at a time."""
    packets: float = 1.0
    """Least number of packets in a window, where latency was asked for."""
    lanes: float = 1.0
    """Collectives that the transport runs at a time if it is handed several; their bytes share the line."""
    call: float = 0.0
    """Host time to launch a collective and to notice its end; the bucket's other work waits meanwhile."""
    inside: float = 134e9
    """Bus bandwidth of collectives inside a server."""
    inside_latency: float = 60e-6
    """Latency of a collective inside a server."""
    inside_hop: float = 1.9e-6
    """Latency of one hop inside a server, within a ring over all ranks: NCCL's own figure for NVLink."""
    interference: float = 0.0
    """Share by which computing slows down while communication runs."""
    carry_over: float = 0.0
    """Share of the communication after an optimizer step that the next step's computing hides. 0 in this suite."""
    efficiency_servers: float = 0.85
    """Share of the line rate that parameter servers get."""
    servers: float = 5e9
    """Rate of a parameter server's software."""
    uncertainty: float = 0.25
    """Relative error that 90 % of the calibration's points stay within when left out of a fit; or a guess."""
    servers_window: float = 16 * 2**20
    """Bytes that a worker may have in flight to all parameter servers together: its credit."""


@dataclass(frozen=True)
class Links:
    """What a cell asks of the links; bytes/s, seconds, fractions. `line` None: the cluster's own."""

    line: float | None = None
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    congestion: str = "cubic"
    buffer: float = BUFFER


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
    def line(self) -> float:
        """Rate of an interface, bytes/s."""
        line = self.network.line or self.physics.line
        return min(line, self.physics.shaped) if self.network.latency or self.network.jitter else line

    def goodput(self, efficiency: float, together: int) -> float:
        """Bytes/s of payload through an interface when `together` servers wait for each other."""
        return self.line * efficiency * math.pow(max(together, 2) / 2, -self.physics.efficiency_fade)

    @property
    def latency(self) -> float:
        """One-way latency between servers, seconds; with jitter, the latest of many messages counts."""
        late = self.network.jitter * math.sqrt(2 * math.log(max(self.layout.servers, 2)))
        return self.physics.latency + self.network.latency + late

    @property
    def connection(self) -> float:
        """Rate of one connection, bytes/s, limited by its software and by the congestion control's response to loss."""
        return min(self.physics.connection, self.lossy)

    def stall(self, nbytes: float, rate: float, limit: float = math.inf) -> float:
        """Time that a message of nbytes on one connection of `rate` waits for its window, at most `limit`, to open.

        Every window beyond the first takes a cycle: the round trip of its last packet, or the time to send the window
        if longer. Packets also wait for others on the line, s u / (2 (1 - u)) for a service of s at a utilisation of u
        (Pollaczek and Khinchine, constant service); with u = sending / cycle, the cycle solves a quadratic equation.
        A window of a single packet does not wait for packets of its own.
        """
        window = min(self.physics.window * self.network.buffer / BUFFER, limit)
        packets = self.physics.packets if self.network.latency or self.network.jitter else 1.0
        packet, sending = min(self.physics.packet, window / packets) / rate, window / rate
        trip = 2 * self.latency + packet
        wait = 2 * sending * packet * (1 - 1 / packets)
        cycle = (trip + sending + math.sqrt((trip - sending) ** 2 + wait)) / 2
        return max(0.0, nbytes / window - 1) * (cycle - sending)

    @property
    def lossy(self) -> float:
        """Rate of a connection under loss, bytes/s: Mathis (Reno, every segment acknowledged) or RFC 9438 (CUBIC).

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


def physics_of(cluster: ClusterPart, transport: str) -> Physics:
    """A cluster's parameters for the transport of this name; the transport's own override the cluster's."""
    given = {key: value for key, value in cluster.physics.items() if key not in ("transport", "fit")}
    given |= cluster.transports.get(transport, {})
    known = {f.name for f in fields(Physics)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(
            f"cluster.physics.{unknown[0]}: no such key; allowed: {', '.join(sorted(known))}, transport, fit"
        )
    return replace(Physics(), **{key: float(value) for key, value in given.items()})


def cluster_of(cell: Cell, physics: Physics | None = None) -> Cluster:
    """The cluster that a cell describes; where servers differ, the slowest link counts."""
    asked, cluster = cell.network, cell.cluster
    links = [link_of(asked, changes) for changes in cluster.server.values()]
    if len(links) < cluster.servers:
        links.append(link_of(asked))
    rates = [link.bandwidth for link in links if link.bandwidth is not None]
    network = Links(
        line=min(rates) / 8 if rates else None,
        latency=max(link.latency for link in links),
        jitter=max(link.jitter for link in links),
        loss=max(link.loss for link in links),
        congestion=asked.congestion,
        buffer=float(asked.tcp_window),
    )
    physics = physics_of(cluster, cell.transport.name) if physics is None else physics
    return Cluster(physics, network, Layout(cluster.servers, cluster.ranks_per_server))
