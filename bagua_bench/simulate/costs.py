"""Seconds that collectives take (sources: Thakur et al. 2005; Patarasuk and Yuan 2009; NCCL's tuning model).

In every formula, the tensor has S = `nbytes`, n servers of g ranks take part, and N = n g. Servers of several sites, m
in each, share their site's line to the others: a collective takes as long as its bytes on the busiest line, a server's
or a site's, and its hops between sites take their latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bagua_bench.machine.program import Collective
from bagua_bench.simulate import bagua_net
from bagua_bench.simulate.cluster import Cluster, Layout
from bagua_bench.simulate.loss import with_loss
from bagua_bench.simulate.transfers import direct_transfer, ring, ring_transfer, spread


def seconds(call: Collective, cluster: Cluster) -> float:
    """Time of a call, from the moment all its ranks have arrived."""
    if call.group is not None:
        cluster = replace(cluster, layout=Layout(*call.group))
    servers, per_server = cluster.layout.servers, cluster.layout.per_server
    host = cluster.physics.call
    packing = call.packs / cluster.physics.packing  # beside the transfer, slice after slice
    if call.level == "intra" or (call.level == "flat" and servers == 1):
        return host + max(inside(call, per_server, cluster), packing) if per_server > 1 else 0.0
    if call.kind == "push_pull":
        host = 0.0  # threads of their own wait for the servers
    formulas = {**BETWEEN, **bagua_net.BETWEEN} if cluster.network.grouped else BETWEEN
    return host + max(formulas[call.kind](call, per_server if call.level == "flat" else 1, cluster), packing)


def without_hops(cluster: Cluster) -> Cluster:
    """A cluster where hops take no time; waiting for TCP windows still does."""
    hops = dict.fromkeys(("ring_hop", "hop", "gather_hop", "inside_hop", "inside_latency", "call"), 0.0)
    return replace(cluster, physics=replace(cluster.physics, **hops))


def wire(cluster: Cluster) -> Cluster:
    """A cluster without any latency: a call takes as long as its bytes are on the line."""
    near = without_hops(cluster)
    at_once = replace(cluster.network.at_once(), line=cluster.line)
    return replace(near, physics=replace(near.physics, latency=0.0, packet=0.0), network=at_once)


def inside(call: Collective, g: int, cluster: Cluster) -> float:
    """Within a server: latency + bytes on the bus / bus bandwidth (nccl-tests' definition of the bus bandwidth)."""
    passes = {
        "all_reduce": 2 * (g - 1) / g,
        "reduce_scatter": (g - 1) / g,
        "all_gather": g - 1,
        "all_to_all": (g - 1) / g,
        "exchange": len(call.offsets),
        "pairs": 1,
        "push_pull": 2 * (g - 1) / g,
    }
    bus = passes.get(call.kind, 1.0) * call.nbytes
    return 0.0 if g == 1 else cluster.physics.inside_latency + bus / cluster.physics.inside


def all_reduce(call: Collective, g: int, cluster: Cluster) -> float:
    """Ring over all ranks: 2(n - 1) hops between servers, 2(N - n) inside, 2(N - 1)/N S over every interface."""
    n = cluster.layout.servers
    nbytes, within = 2 * (n * g - 1) / (n * g) * call.nbytes, 2 * (n * g - n) * cluster.physics.inside_hop
    transfer = ring_transfer(nbytes, 2 * (n * g - 1), cluster)
    return ring(2 * (n - 1), cluster.physics.ring_hop, transfer, nbytes, cluster) + within


def reduce_scatter(call: Collective, g: int, cluster: Cluster) -> float:
    """Ring: the first half of an all-reduce."""
    n = cluster.layout.servers
    nbytes, within = (n * g - 1) / (n * g) * call.nbytes, (n * g - n) * cluster.physics.inside_hop
    return ring(n - 1, cluster.physics.ring_hop, ring_transfer(nbytes, n * g - 1, cluster), nbytes, cluster) + within


def all_gather(call: Collective, g: int, cluster: Cluster) -> float:
    """Ring: (N - 1) parts of S over every interface; n - 1 hops between servers, or fewer with direct sends."""
    n = cluster.layout.servers
    hops = max(cluster.physics.hop, cluster.physics.gather_hop * (n - 1))
    nbytes, within = (n * g - 1) * call.nbytes, (n * g - n) * cluster.physics.inside_hop
    if g > 1:
        transfer = ring_transfer(nbytes, n * g - 1, cluster)
        return ring(n - 1, hops / (n - 1), transfer, nbytes, cluster) + within
    return hops * cluster.reach + spread(nbytes, n - 1, cluster) + within


def all_to_all(call: Collective, g: int, cluster: Cluster) -> float:
    """Direct sends: the g ranks of a server send (N - g)/N S each to other servers, all at once."""
    n = cluster.layout.servers
    outside = g * (n * g - g) / (n * g) * call.nbytes
    return cluster.physics.hop * cluster.reach + spread(outside, g * g * (n - 1), cluster, g)


def exchange(call: Collective, g: int, cluster: Cluster) -> float:
    """Direct sends of S to every peer: a peer d ranks away puts min(d, g) ranks' messages on the interface.

    On a site's line it puts min(d, m g).
    """
    size, together = cluster.layout.servers * g, cluster.layout.servers // cluster.sites * g
    away = [min(abs(d) % size, size - abs(d) % size) for d in call.offsets]
    flows, between = sum(min(d, g) for d in away), sum(min(d, together) for d in away)
    transfer = direct_transfer(flows * call.nbytes, flows, cluster, g)
    if cluster.lines is not None:
        transfer = max(transfer, direct_transfer(between * call.nbytes, between, cluster.lines, together))
    return cluster.physics.hop * cluster.reach + transfer


def pairs(call: Collective, g: int, cluster: Cluster) -> float:
    """Direct sends of S between the two ranks of every pair.

    Where the first rank's other is on another server, so are those of all ranks of the busiest one; the same of sites.
    """
    [offset] = call.offsets
    together = cluster.layout.servers // cluster.sites * g
    flows, between = (crowd if abs(offset) >= crowd else 0 for crowd in (g, together))
    transfer = direct_transfer(flows * call.nbytes, flows, cluster, g)
    if cluster.lines is not None:
        transfer = max(transfer, direct_transfer(between * call.nbytes, between, cluster.lines, together))
    return cluster.physics.hop * cluster.reach + transfer


def tree(call: Collective, g: int, cluster: Cluster) -> float:
    """Pipelined binomial tree (reduce or broadcast): log2 n hops, S over the busiest interface.

    Of s sites, log2 s of the hops are between them.
    """
    hops = math.ceil(math.log2(cluster.layout.servers))
    far = math.ceil(math.log2(cluster.sites))
    latency = cluster.physics.ring_hop * ((hops - far) * cluster.latency + far * cluster.reach)
    latency += (hops - far) * cluster.forwarding(call.nbytes) + far * cluster.forwarding(call.nbytes, True)
    return latency + (g - 1) * cluster.physics.inside_hop + ring_transfer(call.nbytes, 1, cluster)


def push_pull(call: Collective, g: int, cluster: Cluster) -> float:
    """Parameter servers beside the workers: 2(n - 1)/n S through every interface, pipelined in partitions.

    A worker has a connection to every other server. It waits if its credit, or its TCP windows, do not cover the round
    trip; the credit comes back as whole partitions.
    """
    n = cluster.layout.servers
    local = inside(Collective("all_reduce", call.nbytes, "intra"), g, cluster)
    slowest = pushed(2 * (n - 1) / n * call.nbytes, 1, n - 1, cluster)
    if cluster.far is not None:
        here = n // cluster.sites
        slowest = max(slowest, pushed(2 * (n - here) / n * call.nbytes, here, n - here, cluster.far))
    return slowest + local


def pushed(nbytes: float, workers: int, servers: int, cluster: Cluster) -> float:
    """Seconds for nbytes of each of some workers behind one line, which have a connection each to every server."""
    physics = cluster.physics
    line = cluster.goodput(physics.efficiency_ring, 2, workers * servers * cluster.connection(1))
    rate = min(line, workers * physics.servers)
    credit = min(physics.servers_window, servers * cluster.window)
    partition = min(physics.partition, credit)
    cycle = cluster.cycle(credit, rate / workers, partition, credit / partition)
    flows = cluster.layout.servers * servers
    return with_loss(nbytes * cycle / credit, nbytes / servers, flows, 1, cluster)


BETWEEN: dict[str, Callable[[Collective, int, Cluster], float]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "exchange": exchange,
    "pairs": pairs,
    "reduce": tree,
    "broadcast": tree,
    "push_pull": push_pull,
}
"""Formulas of collectives that cross servers, by the communicator's names; a transport may have some of its own."""
