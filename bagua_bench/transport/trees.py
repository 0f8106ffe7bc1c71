"""Trees of a group's ranks for large all-reduces: which one should be fastest, by the rates between all pairs.

Along a tree a rank sends the data once to each of its neighbours and gets it once from each, so a leaf moves it once;
along a ring every rank moves it 2 (n - 1) / n times. A rank with a slow line is therefore better off as a leaf, as long
as others are fast enough for several neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Rates = Sequence[Sequence[float]]
"""Bytes/s between two ranks, both ways at once; of a rank with itself it means nothing."""
Parents = tuple[int, ...]
"""Of every rank; -1 of the root."""
_ALL = 1 - 1e-9  # of what is needed, as numbers are rounded
_CHILDREN = 2  # of a rank, where others have room: with five, eight ranks took 7 % longer


def best(rates: Rates) -> tuple[Parents, float]:
    """A tree that should be as fast as any, and its seconds per byte. There are few steps to the root.

    A rank's own line is taken to carry as much as the fastest of its pairs. The best tree of ranks with limited numbers
    of neighbours is hard to find; this one is built by adding rank after rank, and seldom worse.
    """
    lines = [max(rate for other, rate in enumerate(row) if other != rank) for rank, row in enumerate(rates)]
    pairs = {1 / rates[one][other] for one in range(len(rates)) for other in range(one)}
    limits = sorted(pairs | {count / line for line in lines for count in range(1, len(rates))})
    least = bisect_left(limits, True, key=lambda limit: _within(rates, lines, limit) is not None)
    parents = _within(rates, lines, limits[least])
    assert parents is not None, "at the largest limit every rank may have every other one as a neighbour"
    return parents, limits[least]


def _within(rates: Rates, lines: Sequence[float], limit: float) -> Parents | None:
    """A tree in which no line and no rank takes more than `limit` seconds per byte, if one is found."""
    ranks = range(len(rates))
    choices = [
        sum(limit * rate >= _ALL for other, rate in enumerate(row) if other != rank) for rank, row in enumerate(rates)
    ]
    fastest_first = sorted(ranks, key=lambda rank: -lines[rank])
    choosy_first = sorted(fastest_first, key=lambda rank: (rank != fastest_first[0], choices[rank]))
    return _added(rates, lines, limit, fastest_first) or _added(rates, lines, limit, choosy_first)


def _added(rates: Rates, lines: Sequence[float], limit: float, order: Sequence[int]) -> Parents | None:
    """The tree of rank after rank, each below one of those before it."""
    room = [int(limit * line / _ALL) for line in lines]  # for neighbours
    first, *left = order
    parents, depth, children = {first: -1}, {first: 0}, [0] * len(rates)
    while left:
        before = len(left)
        for rank in list(left):
            able = [one for one in parents if room[one] and limit * rates[one][rank] >= _ALL]
            if not able or not room[rank]:
                continue
            parent = min(able, key=lambda one: (children[one] >= _CHILDREN, depth[one], -room[one]))
            parents[rank], depth[rank] = parent, depth[parent] + 1
            children[parent] += 1
            room[parent] -= 1
            room[rank] -= 1
            left.remove(rank)
        if len(left) == before:
            return None
    return tuple(parents[rank] for rank in range(len(rates)))


def text(parents: Parents) -> str:
    """Such as "3 (0 (1, 2), 4)": behind each rank those below it."""

    def below(parent: int) -> str:
        ranks = [f"{rank}{below(rank)}" for rank, above in enumerate(parents) if above == parent]
        return f" ({', '.join(ranks)})" if ranks else ""

    return below(-1)[2:-1]
