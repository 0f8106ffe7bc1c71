"""Seconds of the collectives that Bagua-Net's groups have of their own (cpp/collectives/algorithms.cpp).

All-to-all and exchanges, and what is written here, are as in `costs`: S bytes, n servers of g ranks, N = n g, s sites
of m servers. Where servers or sites are no power of two, partners at distances 1, 2, 4 ... are taken to be elsewhere.
No torch import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bagua_bench.configuration.network_shape import INT8
from bagua_bench.machine.program import Collective
from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.transfers import direct_transfer, in_one_place, ring, ring_transfer, spread

FEW_BYTES, FEW_RANKS = 32 << 10, 8
"""Up to so many bytes the number of steps matters more than the bytes; so many ranks send to each other at once."""
TREE_BYTES = {"broadcast": 256 << 10, "reduce": FEW_BYTES}
"""Up to so many bytes they go along a tree."""
_SHARE = 256
"""Floats that share a scale of 4 bytes where they travel as 8-bit integers (int8.h)."""
_SUMMED, _GATHERED, _BROADCAST = (4, 128 << 10, 256 << 10), (4, 128 << 10, 2 << 20), (16, 256 << 10, 1 << 20)
"""In how many slices a block goes (pipeline.cpp), and their least and most bytes. Those of a broadcast: for each rank
between the ends of its chain."""


def packed(floats: int) -> int:
    """Bytes of so many floats as 8-bit integers."""
    return floats + 4 * math.ceil(floats / _SHARE)


def summed(nbytes: int, element: int, wire: str | None) -> int:
    """Bytes that floats of `element` bytes each travel as in a sum; `wire` as `transport.wire`."""
    return packed(nbytes // element) if wire == INT8 and nbytes > FEW_BYTES else nbytes


def all_reduce(call: Collective, g: int, cluster: Cluster) -> float:
    """In few steps if it is small, by halves among a power of two of ranks, else along a ring."""
    ranks = cluster.layout.servers * g
    if max(call.nbytes, call.packs) <= FEW_BYTES:
        return _doubling(call.nbytes, g, cluster)
    if _is_power(ranks):
        return _halving(call.nbytes, g, cluster)
    return _ring(2 * (ranks - 1), call.nbytes / ranks, g, cluster, 2)


def reduce_scatter(call: Collective, g: int, cluster: Cluster) -> float:
    """A ring: the first half of an all-reduce."""
    ranks = cluster.layout.servers * g
    return _ring(ranks - 1, call.nbytes / ranks, g, cluster)


def all_gather(call: Collective, g: int, cluster: Cluster) -> float:
    """Small parts go to all others directly, or to ranks at distances 1, 2, 4 ...; larger ones along a ring."""
    n, physics = cluster.layout.servers, cluster.physics
    ranks = n * g
    if call.nbytes > FEW_BYTES:
        return _ring(ranks - 1, call.nbytes, g, cluster, slices=_GATHERED)
    if ranks <= FEW_RANKS:
        return physics.hop * cluster.reach + spread(g * (ranks - g) * call.nbytes, g * g * (n - 1), cluster, g)
    distances = [2**step for step in range(math.ceil(math.log2(ranks)))]
    far = min(len(distances), math.ceil(math.log2(cluster.sites)) + 1) if cluster.sites > 1 else 0
    moved = [(d, min(d, ranks - d) * call.nbytes) for d in distances]
    return physics.hop * _late(len(distances), far, cluster) + _passing(moved, g, cluster)


def onward(call: Collective, g: int, cluster: Cluster) -> float:
    """Broadcast and reduce: small ones along a tree, others N - 1 hops from one rank to the next, slice after slice."""
    if call.nbytes <= TREE_BYTES[call.kind]:
        return _tree(call.nbytes, g, cluster)
    n = cluster.layout.servers
    if call.kind == "broadcast":
        piece = _slice(call.nbytes / max(1, n * g - 2), *_BROADCAST)
    else:
        piece = _slice(call.nbytes, *_SUMMED)
    piece = min(call.nbytes, piece)
    late = cluster.physics.ring_hop * _late(n - 1, cluster.sites - 1, cluster)
    whole = replace(cluster, network=cluster.network.but(loss=0.0))  # few slices lose anything on the way
    filling = (n - 2) * ring_transfer(piece, 1, whole) + (n - 1) * cluster.forwarding(piece)
    return late + filling + (n * g - n) * cluster.physics.inside_hop + ring_transfer(call.nbytes, 1, cluster)


def _slice(nbytes: float, parts: int, least: int, most: int) -> float:
    return min(max(nbytes / parts, least), most)


def _tree(nbytes: float, g: int, cluster: Cluster) -> float:
    """A binomial tree: log2 N hops of all S bytes, the first rank's one after the other."""
    ranks = cluster.layout.servers * g
    if _is_power(ranks):
        inside, hops, far = math.log2(g), math.log2(cluster.layout.servers), math.log2(cluster.sites)
    else:
        inside, hops = 0.0, float(math.ceil(math.log2(ranks)))
        far = hops if cluster.sites > 1 else 0.0
    late = cluster.physics.ring_hop * _late(hops, far, cluster) + inside * cluster.physics.inside_hop
    near = direct_transfer((hops - far) * nbytes, 1, in_one_place(cluster), 1, max(hops - far, 1), True)
    if cluster.lines is None:
        return late + near
    return late + near + direct_transfer(far * nbytes, 1, cluster.lines, 1, far, True)


def _ring(
    steps: int, block: float, g: int, cluster: Cluster, rounds: int = 1, slices: tuple[int, int, int] = _SUMMED
) -> float:
    """So many steps of a block each, once or twice around; a slice of it goes on as soon as it is there."""
    n = cluster.layout.servers
    segments = block / _slice(block, *slices)
    nbytes = steps * block
    transfer = ring_transfer(nbytes, steps, cluster)
    between = ring(rounds * (n - 1), cluster.physics.ring_hop, transfer, nbytes, cluster, max(1.0, segments))
    return between + rounds * (n * g - n) * cluster.physics.inside_hop


def _doubling(nbytes: float, g: int, cluster: Cluster) -> float:
    """Recursive doubling: log2 N exchanges of all S bytes; ranks beyond a power of two first hand theirs over."""
    ranks = cluster.layout.servers * g
    if _is_power(ranks):
        inside, hops, far = math.log2(g), math.log2(cluster.layout.servers), math.log2(cluster.sites)
    else:
        inside, hops = 0.0, math.floor(math.log2(ranks)) + 2.0
        far = hops if cluster.sites > 1 else 0.0
    late = cluster.physics.ring_hop * _late(hops, far, cluster) + inside * cluster.physics.inside_hop
    near = direct_transfer((hops - far) * g * nbytes, g, in_one_place(cluster), g, max(hops - far, 1), True)
    if cluster.lines is None:
        return late + near
    together = cluster.layout.servers // cluster.sites * g
    return late + near + direct_transfer(far * together * nbytes, together, cluster.lines, together, far, True)


def _halving(nbytes: float, g: int, cluster: Cluster) -> float:
    """Recursive halving and doubling: 2 log2 n hops between servers, 2(n - 1)/n S over every interface.

    The largest parts go to the nearest ranks, so that between s sites of m servers there are 2 log2 s hops, and 2(s -
    1)/s S on each line, over a connection for each rank of a site.
    """
    n, sites, here = cluster.layout.servers, cluster.sites, cluster.layout.servers // cluster.sites
    late = 2 * cluster.physics.ring_hop * _late(math.log2(n), math.log2(sites), cluster)
    late += 2 * math.log2(g) * cluster.physics.inside_hop
    steps = 2 * math.log2(here) or 1.0
    near = direct_transfer(2 * (1 - 1 / here) * nbytes, g, in_one_place(cluster), g, steps, True)
    if cluster.lines is None:
        return late + near
    crossing, steps = 2 * (1 - 1 / sites) * nbytes, 2 * math.log2(sites)
    return late + near + direct_transfer(crossing, here * g, cluster.lines, here * g, steps, True)


def _passing(moved: list[tuple[int, float]], g: int, cluster: Cluster) -> float:
    """Seconds in which each rank sends so many bytes over each distance, one after the other."""
    near = sum(min(d, g) * nbytes for d, nbytes in moved)
    transfer = direct_transfer(near, g, in_one_place(cluster), g, len(moved), True)
    if cluster.lines is None:
        return transfer
    together = cluster.layout.servers // cluster.sites * g
    crossing = sum(min(d, together) * nbytes for d, nbytes in moved)
    return max(transfer, direct_transfer(crossing, together, cluster.lines, together, len(moved), True))


def _late(hops: float, far: float, cluster: Cluster) -> float:
    """Seconds of so many hops, `far` of them between sites."""
    far = min(far, hops)
    return (hops - far) * cluster.latency + far * cluster.reach


def _is_power(ranks: int) -> bool:
    return ranks & (ranks - 1) == 0


BETWEEN: dict[str, Callable[[Collective, int, Cluster], float]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "reduce": onward,
    "broadcast": onward,
}
