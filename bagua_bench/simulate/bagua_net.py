"""Seconds of the collectives that Bagua-Net's groups have of their own (cpp/collectives/algorithms.cpp).

The others, and what is written here, are as in `costs`: S bytes, n servers of g ranks, N = n g. No torch import.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bagua_bench.machine.program import Collective
from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.transfers import direct_transfer, in_one_place, ring, ring_transfer, spread

FEW_BYTES, FEW_RANKS = 32 << 10, 8
"""Up to so many bytes the number of steps matters more than the bytes; so many ranks send to each other at once."""


def all_reduce(call: Collective, g: int, cluster: Cluster) -> float:
    """In few steps if it is small, by halves among a power of two of ranks, else along a ring."""
    ranks = cluster.layout.servers * g
    if call.nbytes <= FEW_BYTES:
        return _doubling(call.nbytes, g, cluster)
    if ranks & (ranks - 1) == 0:
        return _halving(call.nbytes, g, cluster)
    n, steps = cluster.layout.servers, 2 * (ranks - 1)
    transfer = ring_transfer(steps / ranks * call.nbytes, steps, cluster)
    return ring(2 * (n - 1), cluster.physics.ring_hop, transfer, cluster) + 2 * (ranks - n) * cluster.physics.inside_hop


def all_gather(call: Collective, g: int, cluster: Cluster) -> float:
    """Small parts go to all others directly, or to ranks at distances 1, 2, 4 ...; larger ones along a ring."""
    n, physics = cluster.layout.servers, cluster.physics
    ranks = n * g
    if call.nbytes > FEW_BYTES:
        transfer = ring_transfer((ranks - 1) * call.nbytes, ranks - 1, cluster)
        return ring(n - 1, physics.ring_hop, transfer, cluster) + (ranks - n) * physics.inside_hop
    if ranks <= FEW_RANKS:
        return physics.hop * cluster.reach + spread(g * (ranks - g) * call.nbytes, g * g * (n - 1), cluster, g)
    hops = math.ceil(math.log2(ranks))
    return hops * physics.hop * cluster.reach + direct_transfer(g * (ranks - 1) * call.nbytes, g, cluster, g, hops)


def _doubling(nbytes: float, g: int, cluster: Cluster) -> float:
    """Recursive doubling: log2 N exchanges of all S bytes; ranks beyond a power of two first hand theirs over."""
    whole = cluster.layout.servers * g
    extra = 0 if whole & (whole - 1) == 0 else 2
    hops = max(int(math.log2(whole)) - math.log2(g), 0) + extra
    late = _late(hops, cluster) + math.log2(g) * cluster.physics.inside_hop
    return late + direct_transfer(hops * g * nbytes, g, cluster, g, max(hops, 1))


def _halving(nbytes: float, g: int, cluster: Cluster) -> float:
    """Recursive halving and doubling: 2 log2 n hops between servers, 2(n - 1)/n S over every interface.

    The largest parts go to the nearest ranks, so that between s sites of m servers there are 2 log2 s hops, and 2(s -
    1)/s S on each line, over a connection for each rank of a site.
    """
    here = cluster.layout.servers // cluster.sites
    late = 2 * (_late(math.log2(cluster.layout.servers), cluster) + math.log2(g) * cluster.physics.inside_hop)
    near = direct_transfer(2 * (1 - 1 / here) * nbytes, g, in_one_place(cluster), g, 2 * math.log2(here) or 1)
    if cluster.far is None:
        return late + near
    steps = 2 * math.log2(cluster.sites)
    return late + near + direct_transfer(2 * (1 - 1 / cluster.sites) * nbytes, here * g, cluster.far, here * g, steps)


def _late(hops: float, cluster: Cluster) -> float:
    """Seconds of so many hops, of which as few as can be are between sites."""
    far = math.log2(cluster.sites)
    return cluster.physics.ring_hop * (max(hops - far, 0) * cluster.latency + far * cluster.reach)


BETWEEN: dict[str, Callable[[Collective, int, Cluster], float]] = {"all_reduce": all_reduce, "all_gather": all_gather}
