"""The schedules of peer systems, as programs for the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bagua_bench.comm import traffic
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import (
    Collective,
    Fusion,
    Item,
    Operation,
    Phase,
    Program,
    Submit,
    Traffic,
    Wait,
    Work,
)

Sends = Callable[[int], Iterable[Item]]
"""The items to issue when the gradient of a parameter (given by its position) becomes ready."""


def program(layers: Layers, ranks: int, steps: int, sends: Sends, sent: float, fusion: Fusion | None = None) -> Program:
    """Data-parallel steps that communicate gradients during the backward pass; `sent` bytes per rank and step."""
    shares = list(zip(layers.layers, layers.shares(), strict=True))
    items: list[Item] = [Phase("forward"), *(Work("forward", share) for _, share in shares), Phase("backward")]
    for layer, share in reversed(shares):
        items.append(Work("backward", share))
        for position in reversed(layer.params):
            items += sends(position)
    items += [Phase("communication"), Wait(), Phase("optimizer"), Work("optimizer", 1.0)]
    bytes_sent = {"flat": sent, "intra": 0.0, "inter": 0.0}
    return Program((tuple(items),) * steps, (bytes_sent,), (ranks,), fusion=fusion)


def sizes(layers: Layers) -> list[int]:
    """Bytes of every parameter's gradient, float32."""
    found = []
    for _, shape in layers.params:
        elements = 1
        for length in shape:
            elements *= length
        found.append(4 * elements)
    return found


class BucketSends:
    """One all-reduce per bucket, as soon as the bucket and all before it are complete.

    casts: memory traffic before and after it, per byte that travels.
    """

    def __init__(
        self, buckets: Sequence[Sequence[int]], nbytes: Sequence[int], casts: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self._missing = [set(bucket) for bucket in buckets]
        self._calls: list[tuple[Operation, ...]] = []
        for bucket in buckets:
            size = sum(nbytes[i] for i in bucket)
            before, after = (tuple([Traffic(cast * size)] if cast else []) for cast in casts)
            self._calls.append((*before, Collective("all_reduce", size, "flat"), *after))
        self._bucket_of = {i: number for number, bucket in enumerate(buckets) for i in bucket}
        self._front = 0

    def __call__(self, position: int) -> list[Item]:
        self._missing[self._bucket_of[position]].discard(position)
        items: list[Item] = []
        while self._front < len(self._missing) and not self._missing[self._front]:
            items.append(Submit(self._calls[self._front]))
            self._front += 1
        return items


def all_reduced(layers: Layers, ranks: int) -> float:
    """Bytes one rank sends in all-reducing every gradient once."""
    return traffic.all_reduce(sum(sizes(layers)), ranks)
