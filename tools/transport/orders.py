"""All-reduces of eight ranks of which one pair has a slow line: the measured order beside every other kind of order.

With one slow pair there are few kinds. Along a ring its ranks are neighbours or not; in halving they exchange halves,
quarters, eighths or nothing. So trying one order of each kind is an exhaustive search.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bagua_bench.transport import order
from tools.transport import shaped, torch_bench

RANKS = 8
FAST, SLOW = 200e6, 20e6  # bit/s
_BYTES, _REPEAT = 4 << 20, 2
PAIRS = ((0, 1), (2, 6), (3, 4))
"""In the given order they exchange halves, eighths, and nothing. On a ring the first and the last are neighbours."""
MEASURED, GIVEN = "measured", "given"


@dataclass
class Kind:
    """An order: `seconds` of an all-reduce by it, of the slowest rank, one value for each round."""

    name: str
    ranks: tuple[int, ...]
    ring: bool
    seconds: list[float] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """The median of the rounds."""
        return median(self.seconds)


@dataclass
class Search:
    """What was found with a slow pair. survey: seconds that measuring took, the median of the rounds."""

    pair: tuple[int, int]
    survey: float
    kinds: list[Kind]

    @property
    def best(self) -> float:
        """Seconds of the fastest kind of order that was not measured."""
        return min(kind.typical for kind in self.kinds if kind.name != MEASURED)

    def times_best(self, name: str) -> float:
        """Time of a kind of order over that of the fastest."""
        return next(kind.typical for kind in self.kinds if kind.name == name) / self.best


def search(pair: tuple[int, int], rounds: int, seed: int = 0) -> Search:
    """Every kind of order in turn, `rounds` times; each round measures anew."""
    kinds, surveys = list(kinds_of(pair, random.Random(seed))), []
    with shaped.star(RANKS) as sites, torch_bench.ranks("tools.transport.order_rank", sites, 1, {}) as ranks:
        for rank, site in enumerate(sites):
            others = {other: sites[other].address for other in range(RANKS) if other != rank}
            slow = {other: {rank, other} == set(pair) for other in others}
            shaped.limit_towards(site, {others[other]: SLOW if slow[other] else FAST for other in others})
        for _ in range(rounds):
            surveys.append(_survey(ranks, kinds[0]))
            for kind in kinds:
                asked = {"ranks": kind.ranks, "ring": kind.ring, "bytes": _BYTES, "repeat": _REPEAT}
                kind.seconds.append(max(answer["seconds"] for answer in _ask(ranks, asked)))
    return Search(pair, median(surveys), kinds)


def kinds_of(pair: tuple[int, int], luck: random.Random) -> Iterator[Kind]:
    """The order to be measured first, then the given one, then one of each kind, drawn by lot."""
    given = tuple(range(RANKS))
    yield Kind(MEASURED, given, False)
    yield Kind(GIVEN, given, False)
    found: set[str] = set()
    while len(found) < 6:
        ranks = tuple(luck.sample(given, RANKS))
        one, other = (ranks.index(rank) for rank in pair)
        near = abs(one - other) in (1, RANKS - 1)
        shared = {1: "halves", 2: "quarters", 4: "eighths"}.get(one ^ other, "nothing")
        names = ((f"ring, {'neighbours' if near else 'apart'}", True), (f"halving, {shared}", False))
        for name, ring in names:
            if name not in found:
                found.add(name)
                yield Kind(name, ranks, ring)


def _survey(ranks: Sequence[Any], kind: Kind) -> float:
    answers = _ask(ranks, {"survey": True})
    chosen = order.best(answers[0]["rates"])
    assert all(answer["rates"] == answers[0]["rates"] for answer in answers), "all ranks must choose the same"
    kind.ranks, kind.ring = chosen.used, chosen.ring
    return max(float(answer["seconds"]) for answer in answers)


def _ask(ranks: Sequence[Any], command: dict[str, Any]) -> list[Any]:
    for rank in ranks:
        torch_bench.tell(rank, command)
    return [torch_bench.hear(rank) for rank in ranks]
