"""Seconds that bytes take through the interface of a server, or the line of a site. No torch import."""

from __future__ import annotations

import math
from dataclasses import replace

from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.loss import with_loss


def ring(
    hops: int, latencies: float, transfer: float, nbytes: float, cluster: Cluster, segments: float | None = None
) -> float:
    """Seconds of a ring that transfers nbytes: each hop passes a chunk on as it arrives, some segments under way.

    With k segments in flight, a segment starts so many latencies after the k-th before it was sent, and has passed two
    links, if the line is free. What arrives passes the hops one after the other, and each as quickly as that one can.
    """
    chunk, in_flight = transfer / hops, segments or cluster.physics.segments
    segment = nbytes / hops / in_flight
    segment /= cluster.streams(segment)
    own = {far: chunk / in_flight + cluster.forwarding(segment, far) for far in (False, True)}
    return hops * sum(share * max(chunk, own[far] + latencies * late) for late, far, share in cluster.hops)


def spread(nbytes: float, connections: int, cluster: Cluster, processes: int = 1) -> float:
    """Seconds for nbytes that every server sends to all others alike.

    A site's line carries what its m servers send to the n - m elsewhere.
    """
    transfer = direct_transfer(nbytes, connections, cluster, processes)
    if cluster.lines is None:
        return transfer
    n, here = cluster.layout.servers, cluster.layout.servers // cluster.sites
    crossing = here * (n - here) / (n - 1)
    number = round(crossing * connections)
    return max(transfer, direct_transfer(crossing * nbytes, number, cluster.lines, here * processes))


def ring_transfer(nbytes: float, steps: int, cluster: Cluster) -> float:
    """Seconds for nbytes through an interface whose ring has `channels` connections to the next server.

    They pass in so many steps, of a message per channel. The ring passes every site once, so a site's line carries as
    much, and so many lines wait for each other.
    """
    if cluster.lines is not None:
        return max(ring_transfer(nbytes, steps, place) for place in (cluster.lines, in_one_place(cluster)))
    physics = cluster.physics
    channels = 1.0 if cluster.network.grouped else max(1.0, physics.channels)
    streams = cluster.streams(nbytes / steps / channels)
    software = physics.ring * math.pow(cluster.layout.servers, -physics.fade)
    limit = channels * cluster.connection(streams)
    rate = min(cluster.goodput(physics.efficiency_ring, cluster.layout.servers, limit), software)
    each, flows = nbytes / channels, channels * cluster.layout.servers
    return with_loss(nbytes / rate + cluster.stall(each, rate / channels, streams), each, flows, streams, cluster)


def in_one_place(cluster: Cluster) -> Cluster:
    """The cluster if any two servers were in one site."""
    return replace(cluster, network=replace(cluster.network, sites=1, far=None))


def direct_transfer(
    nbytes: float,
    connections: int,
    cluster: Cluster,
    processes: int = 1,
    messages: float = 1.0,
    in_pairs: bool = False,
) -> float:
    """Seconds for nbytes through an interface, spread evenly over `connections`, on each of them so many messages.

    in_pairs: whoever receives hears from one sender only, so that no queue is shared.
    """
    if not connections:
        return 0.0
    physics, each = cluster.physics, nbytes / connections
    streams = cluster.streams(each / messages)
    limit = connections * cluster.connection(streams)
    goodput = cluster.goodput(physics.efficiency_direct, connections // processes + 1, limit)
    rate = min(goodput, processes * physics.process)
    window = math.inf if in_pairs else incast(connections, cluster, processes)
    seconds = nbytes / rate + cluster.stall(each, rate / connections, streams, window)
    seconds += messages * cluster.forwarding(each / messages / streams)
    return with_loss(seconds, each, cluster.layout.servers * connections, streams, cluster)


def incast(connections: int, cluster: Cluster, processes: int) -> float:
    """Bytes that each connection to an interface may have in flight if all together are to fit a switch's queue.

    There is no limit where the senders together are no faster than the line (Phanishayee et al., FAST 2008).
    """
    senders = connections / processes
    line = cluster.network.line or cluster.physics.line
    return cluster.physics.incast / connections if senders * cluster.physics.process > line else math.inf
