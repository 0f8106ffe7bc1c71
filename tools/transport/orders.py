"""All-reduces of eight ranks with one slow pair, or one slow rank: the measured order beside other kinds of order.

With one slow pair there are few kinds. Along a ring its ranks are neighbours or not; in halving they exchange halves,
quarters, eighths or nothing. So trying one order of each kind is an exhaustive search. With a slow rank all rings are
alike, and so are all ways of halving; of trees some are tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bagua_bench.transport import trees
from tools.transport import shaped, torch_bench

RANKS = 8
FAST, SLOW = 200e6, 20e6  # bit/s
_BYTES, _REPEAT = 4 << 20, 2
PAIRS = ((0, 1), (2, 6), (3, 4))
"""In the given order they exchange halves, eighths, and nothing. On a ring the first and the last are neighbours."""
RANK = 3
"""The slow one."""
SLOW_ONES = ("pair", "rank")
MEASURED, GIVEN = "measured", "given"


@dataclass
class Kind:
    """An order, or a tree: `seconds` of an all-reduce by it, of the slowest rank, one value for each round."""

    name: str
    ranks: tuple[int, ...]
    ring: bool
    tree: tuple[int, ...] | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """The median of the rounds."""
        return median(self.seconds)

    @property
    def way(self) -> str:
        """How an all-reduce goes, as text."""
        if self.tree:
            return f"a tree of {trees.text(self.tree)}"
        return f"{'a ring of ' if self.ring else ''}{', '.join(map(str, self.ranks))}"


@dataclass
class Search:
    """What was found. slow: the ranks whose line is slow. settling: seconds until an order was chosen, median.

    chosen: the measured order of every round; its kind has that of the last one.
    """

    slow: tuple[int, ...]
    settling: float
    chosen: list[str]
    kinds: list[Kind]

    @property
    def best(self) -> float:
        """Seconds of the fastest kind of order that was not measured."""
        return min(kind.typical for kind in self.kinds if kind.name != MEASURED)

    def times_best(self, name: str) -> float:
        """Time of a kind of order over that of the fastest."""
        return next(kind.typical for kind in self.kinds if kind.name == name) / self.best


def searches(slow: str | None, rounds: int) -> Iterator[Search]:
    """With each of the slow pairs, and with the slow rank; `slow`: only one of `SLOW_ONES`."""
    if slow != "rank":
        for pair in PAIRS:
            yield slow_pair(pair, rounds)
    if slow != "pair":
        yield slow_rank(rounds)


def slow_pair(pair: tuple[int, int], rounds: int, seed: int = 0) -> Search:
    """Ranks that are connected by `FAST`, but a pair by `SLOW`."""
    with shaped.star(RANKS) as (_, sites):
        for rank, site in enumerate(sites):
            others = {other: sites[other].address for other in range(RANKS) if other != rank}
            slow = {other: {rank, other} == set(pair) for other in others}
            shaped.limit_towards(site, {others[other]: SLOW if slow[other] else FAST for other in others})
        return _search(pair, sites, list(of_a_pair(pair, random.Random(seed))), rounds)


def slow_rank(rounds: int) -> Search:
    """Ranks with a line of `FAST`, but one with a line of `SLOW`."""
    with shaped.star(RANKS) as (router, sites):
        for rank, site in enumerate(sites):
            rate = SLOW if rank == RANK else FAST
            shaped.limit_flows(site, {}, rate)
            shaped.limit_flows(router, {}, rate, f"bb{rank}")
        return _search((RANK,), sites, list(of_a_rank()), rounds)


def _search(slow: tuple[int, ...], sites: Sequence[shaped.Site], kinds: list[Kind], rounds: int) -> Search:
    """Every kind of order in turn, `rounds` times; each round chooses anew."""
    settling, chosen = [], []
    with torch_bench.ranks("tools.transport.order_rank", sites, 1, {}) as ranks:
        for _ in range(rounds):
            settling.append(_settle(ranks, kinds[0]))
            chosen.append(kinds[0].way)
            for kind in kinds:
                asked = {"ranks": kind.ranks, "ring": kind.ring, "tree": kind.tree}
                asked |= {"bytes": _BYTES, "untimed": 1, "repeat": _REPEAT}
                kind.seconds.append(max(answer["seconds"] for answer in ask(ranks, asked)))
    return Search(slow, median(settling), chosen, kinds)


def of_a_pair(pair: tuple[int, int], luck: random.Random) -> Iterator[Kind]:
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


def of_a_rank() -> Iterator[Kind]:
    """The order to be measured first, then the given one, which goes by halving, a ring, and trees."""
    given = tuple(range(RANKS))
    yield Kind(MEASURED, given, False)
    yield Kind(GIVEN, given, False)
    yield Kind("ring", given, True)
    fast = [rank for rank in given if rank != RANK]
    for name, ways in {
        "star": [(rank, fast[0]) for rank in given],
        "tree of twos": [(one, fast[(k - 1) // 2]) for k, one in enumerate([*fast, RANK])],
        "chain, the slow one last": [(one, fast[k - 1]) for k, one in enumerate([*fast, RANK])],
        "chain, the slow one inside": [(one, one - 1) for one in given],
    }.items():
        parents = dict(ways) | {fast[0]: -1}
        yield Kind(name, given, False, tuple(parents[rank] for rank in given))


def _settle(ranks: Sequence[Any], kind: Kind) -> float:
    answers = ask(ranks, {"settle": True})
    chosen = [{key: answer[key] for key in ("ranks", "ring", "tree")} for answer in answers]
    assert chosen == chosen[:1] * len(ranks), "all ranks must choose the same"
    kind.ranks, kind.ring, kind.tree = chosen[0]["ranks"], chosen[0]["ring"], chosen[0]["tree"]
    return max(float(answer["seconds"]) for answer in answers)


def ask(ranks: Sequence[Any], command: dict[str, Any]) -> list[Any]:
    """What all ranks answer."""
    for rank in ranks:
        torch_bench.tell(rank, command)
    return [torch_bench.hear(rank) for rank in ranks]
