"""The default bucket size, from the model's bytes and what collectives cost (docs/design.md, Bucket size).

No torch import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LEAST = 2**20
"""Least default size, bytes: smaller messages are all overhead on any network that is worth a rule."""
PARTS = 64
"""Most buckets by default. Only the last one's time is always waited for, so that more of them save below 2 %."""
_MARGIN = 4.0
"""How much larger than needed a bucket is made to hide the overhead: no two begin exactly when that would be best."""
_LONG = 4.0
"""A message measures a rate if it takes so many times as long as an empty one."""
_GROWTH = 8
"""From one message to the next: on a network of 5 ms, every size takes half a second."""


def channels(on_gpu: bool) -> int:
    """How many buckets are under way at a time by default.

    Over gloo, one all-reduce leaves the line idle at times, and two still leave some of it, also without
    latency. Several have not been measured on a GPU yet.
    """
    return 1 if on_gpu else 4


@dataclass(frozen=True)
class Costs:
    """What all-reduces cost: seconds of one without bytes; bytes/s of one, and of one per channel at a time, in all."""

    overhead: float
    alone: float
    together: float
    several: float = 0.0
    """Seconds for each of one per channel at a time, all without bytes; above `overhead` over the channels where it is
    software that takes the time, and not the latency of a network."""
    occupied: float = 0.0
    """CPU seconds that one without bytes takes from computing; 0 where other hardware computes."""


def bucket_size(model: int, channels: int, costs: Costs, least: int = LEAST, share: float = 1.0) -> int:
    """Bytes of a bucket for a model of so many bytes, of which this share of what an all-reduce sends is sent.

    A bucket of b bytes takes overhead + b / alone. K = model / b of them take at least K share b / together (the line)
    and K (each + share b / (channels alone)) (the channels), where `each` is what one without bytes takes if all
    channels have one; the last bucket always ends behind the backward pass. While the channels are what takes longer,
    the sum is least at sqrt(model each alone); once a bucket is so large that the line takes longer, which hides the
    overhead, larger ones only make the end later. What a bucket takes from computing is never hidden: K occupied +
    b / alone is least at sqrt(model occupied alone), and no smaller ones are made. The share counts where the line
    hides the overhead, and not in the square roots: what is sent less is hidden by computing the sooner.
    """
    each = max(costs.overhead / channels, costs.several)
    root = math.sqrt(model * each * costs.alone)
    slack = share * (1 / costs.together - 1 / (channels * costs.alone))
    hidden = _MARGIN * each / slack if slack > 0 else math.inf
    affordable = math.sqrt(model * costs.occupied * costs.alone)
    return math.ceil(max(least, model / PARTS, min(model, max(affordable, min(root, hidden)))))


def measure(seconds: Callable[[int, int], float], channels: int, most: int) -> Costs:
    """What all-reduces cost, where `seconds(nbytes, n)` is the time of n at once, each of nbytes, at most `most`.

    Messages grow until most of their time is that of their bytes.
    """
    overhead = seconds(1, 1)
    several = 0.0 if channels == 1 else seconds(1, channels) / channels
    nbytes = min(most, 2**12)
    while (alone := seconds(nbytes, 1)) < _LONG * overhead and nbytes < most:
        nbytes = min(most, _GROWTH * nbytes)
    together = alone if channels == 1 else seconds(nbytes, channels)
    rate = _rate(nbytes, alone - overhead)
    empty = max(overhead, channels * several)
    return Costs(overhead, rate, max(rate, _rate(channels * nbytes, together - empty)), several)


def _rate(nbytes: int, seconds: float) -> float:
    """Bytes/s; at most 1 TB/s, where a difference of times is noise."""
    return nbytes / max(seconds, 1e-12 * nbytes)
