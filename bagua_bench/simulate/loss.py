"""Seconds that lost packets cost. Sources: Padhye et al. 2000, of whose model this is the part without time-outs, and
the response functions of `Cluster.lossy`. No torch import.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from bagua_bench.simulate.cluster import MSS, Cluster

_MANY = 50.0
"""From so many losses on their number is as good as normal."""


def with_loss(seconds: float, nbytes: float, flows: float, streams: int, cluster: Cluster) -> float:
    """Seconds of the slowest of so many connections that take `seconds` for nbytes each if nothing is lost.

    Each loss costs a round trip, until it is repeated, and what the window lacks until it has grown again. One that
    falls to a share b of W packets and grows by a per round trip lacks (1 - b)^2 W^2 / 2a of them, if it was as large
    as it may be. If losses are too frequent for that, the response function is what it carries. The streams of a
    connection share its losses.
    """
    response, losses = cluster.lossy, cluster.network.loss * nbytes / MSS
    if not losses or not seconds or response == math.inf:
        return seconds
    if cluster.network.congestion == "bbr":
        return max(seconds, nbytes / (streams * response))
    falls_to = 0.5 if cluster.network.congestion == "reno" else 0.7
    peak = 2 / (1 + falls_to)  # of a window that only losses limit, over its mean
    worst = most(losses, flows) / losses  # how many times as many as others has the connection that is waited for
    least = nbytes / streams / response / peak  # seconds at that peak all the time
    taken = max(seconds, least * max(1.0, math.sqrt(worst * (peak - 1))))
    lacks = (peak - 1) * least**2 / taken
    return taken + worst * (lacks + losses * 2 * cluster.latency / streams)


@lru_cache(maxsize=2**14)
def most(mean: float, flows: float) -> float:
    """Expected value of the largest of so many independent Poisson variables with this mean."""
    if flows <= 1:
        return mean
    if mean > _MANY:  # Blom 1958 for the largest of normal ones, and the first term for their skewness
        z = NormalDist().inv_cdf((flows - 0.375) / (flows + 0.25))
        return mean + z * math.sqrt(mean) + (z * z - 1) / 6
    expected, number = 0.0, 0
    exactly = at_most = math.exp(-mean)
    while number <= mean or flows * exactly > 1e-9 * (1 + expected):
        expected -= math.expm1(flows * math.log(min(at_most, 1.0)))
        number += 1
        exactly *= mean / number
        at_most += exactly
    return expected
