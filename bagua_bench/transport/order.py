"""In which order a group's collectives go through its ranks: measure the rates between all pairs, and choose.

A ring is as slow as the slowest pair of neighbours, and halving as the slowest pair that exchanges halves. One bad
line, or servers that are numbered badly, therefore hold up an all-reduce, although nobody needs that line. A rank
that has only slow lines holds it up least as a leaf of a tree.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations

from bagua_bench.transport import trees
from bagua_bench.transport.native import Group, Piece
from bagua_bench.transport.trees import Parents, Rates

_FIRST, _UNIT = 1 << 16, 1 << 18  # bytes: that open up a connection, untimed; and of a message
_SECONDS, _LONG = 0.1, 0.5  # that a measurement takes; a message that takes so long is measurement enough
_TRIED = 1 << 19, 1 << 22  # bytes of the all-reduces that are tried, at least and at most
_LEAST, _MOST = 2, 64  # messages of one measurement
_GAIN = 1.1  # times as fast as the given order another one must be; less may be noise
_FEW, _MANY = 8, 64  # ranks of which every order is tried, and of which none is measured any more
_SPREAD = 0.01  # weight of the mean over all pairs beside the slowest: it decides between orders that are equal there
_UINT8, _MINIMUM = 6, 3  # as in cpp/collectives/reduce.h


@dataclass(frozen=True)
class Order:
    """Ranks by seat: of rings and chains, and of halving. ring: by which of them all-reduces go; but where there is a
    tree, large ones go along it."""

    line: tuple[int, ...]
    pairs: tuple[int, ...]
    ring: bool
    tree: Parents | None = None

    def __str__(self) -> str:
        rings = f"rings of ranks {_text(self.line)}"
        others = rings if self.ring else f"halving of ranks {_text(self.pairs)}, {rings}"
        return f"a tree of ranks {trees.text(self.tree)}, {others}" if self.tree else others

    @property
    def used(self) -> tuple[int, ...]:
        """By all-reduces, where there is no tree."""
        return self.line if self.ring else self.pairs

    def use(self, group: Group) -> None:
        """Let a group's collectives go so; on all its ranks."""
        group.arrange(self.line, self.pairs, self.ring, self.tree)


def _text(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def settle(group: Group, timeout: float) -> Order | None:
    """Measure, choose and use an order; collective. None, and nothing changes, with two ranks, or more than 64.

    It takes a tenth of a second for each rank, and for each slow line of a rank up to two seconds more, or as long as
    320 KiB take. A tree is tried before it is used, by four all-reduces that take half a second or so each, and more
    over a line of less than 1 MB/s. `timeout` in seconds is for each step of it.
    """
    if not 2 < group.size <= _MANY:
        return None
    rates = survey(group, timeout)
    order = _told(group, best(rates) if group.rank == 0 else None, timeout)  # arithmetic may differ between ranks
    if order.tree and group.int8:  # what is lossy does not go along it
        order = replace(order, tree=None)
    if order.tree:
        without = replace(order, tree=None)
        size = int(min(max(_LONG * _slowest(rates), _TRIED[0]), _TRIED[1]))
        if not _faster(group, order, without, size, timeout):
            order = without
    order.use(group)
    return order


def _told(group: Group, order: Order | None, timeout: float) -> Order:
    """The order of rank 0, on all ranks."""
    size = group.size
    found = array("i", bytes(4 * (3 * size + 1)))
    if order:
        found = array("i", [*order.line, *order.pairs, *(order.tree or [size] * size), order.ring])
    group.broadcast(found.buffer_info()[0], len(found) * found.itemsize, 0, timeout)
    line, pairs, tree = (tuple(found[k * size : (k + 1) * size]) for k in range(3))
    return Order(line, pairs, bool(found[-1]), tree if size not in tree else None)


def _slowest(rates: Rates) -> float:
    return min(rate for one, row in enumerate(rates) for other, rate in enumerate(row) if one != other)


def _faster(group: Group, one: Order, other: Order, size: int, timeout: float) -> bool:
    """Whether one order makes an all-reduce of so many bytes faster, by more than noise, as rank 0 sees it."""
    memory = array("B", bytes(size))
    address, _ = memory.buffer_info()

    def seconds(order: Order) -> float:
        order.use(group)
        group.all_reduce(address, size, _UINT8, _MINIMUM, timeout)  # it opens connections up
        group.all_reduce(address, 1, _UINT8, _MINIMUM, timeout)
        began = time.monotonic()
        group.all_reduce(address, size, _UINT8, _MINIMUM, timeout)
        group.all_reduce(address, 1, _UINT8, _MINIMUM, timeout)  # everyone has it
        return time.monotonic() - began

    answer = array("B", [_GAIN * seconds(one) < seconds(other)])
    group.broadcast(answer.buffer_info()[0], 1, 0, timeout)
    return bool(answer[0])


def survey(group: Group, timeout: float) -> Rates:
    """The rates between all pairs; collective. In every round each rank has one partner, as in an all-reduce."""
    own = array("d", [math.inf] * group.size)
    memory = array("B", bytes(2 * _UNIT))  # all messages have the same place, as nobody reads them
    address, _ = memory.buffer_info()
    for pairs in _rounds(group.size):
        for one, other in pairs:
            if group.rank in (one, other):
                peer = other if group.rank == one else one
                own[peer] = _rate(group, peer, address, timeout)
        group.all_reduce(address, 1, _UINT8, _MINIMUM, timeout)  # nobody begins the next round before
    every = [array("d", own) for _ in range(group.size)]
    group.all_gather([one.buffer_info()[0] for one in every], own.itemsize * group.size, timeout)
    return [[min(every[i][j], every[j][i]) for j in range(group.size)] for i in range(group.size)]


def _rate(group: Group, peer: int, address: int, timeout: float) -> float:
    """Bytes/s to and from a peer at once."""

    def seconds(size: int, count: int = 1) -> float:
        began = time.monotonic()
        group.move([Piece(peer, True, address, size), Piece(peer, False, address + _UNIT, size)] * count, timeout)
        return time.monotonic() - began

    seconds(_FIRST)
    taken = seconds(_UNIT)
    count = array("q", [0 if taken > _LONG else min(_MOST, max(_LEAST, int(_SECONDS / taken)))])
    place, size = count.buffer_info()[0], count.itemsize  # the lower rank decides for both
    group.move([Piece(peer, group.rank < peer, place, size)], timeout)
    return _UNIT * count[0] / seconds(_UNIT, count[0]) if count[0] else _UNIT / taken


def _rounds(size: int) -> Iterator[list[tuple[int, int]]]:
    """Every pair once, in as few rounds as possible, each rank at most once in a round: one stays, the others turn."""
    last = size - 1 + size % 2  # where the number is odd, a rank without a partner in each round
    for turn in range(last):
        pairs = [(last, turn)] + [((turn + k) % last, (turn - k) % last) for k in range(1, (last + 1) // 2)]
        yield [pair for pair in pairs if max(pair) < size]


def best(rates: Rates) -> Order:
    """The orders in which a large all-reduce should be fastest, and a tree. An order that gains no more than noise over
    the given one gives way to it, and there is no tree that gains no more than that.

    With up to eight ranks they are the best of all; with more, such that no swap of two ranks makes them better.
    """
    given = tuple(range(len(rates)))
    line, pairs = _searched(rates, _along_a_ring), given
    ring, cost = True, _along_a_ring(rates, line)
    if len(rates) > 2 and not len(rates) & (len(rates) - 1):  # halving takes a power of two of ranks
        pairs = _searched(rates, _halving)
        ring = _halving(rates, pairs) > _GAIN * cost
        cost = cost if ring else _halving(rates, pairs)
    tree, by_tree = trees.best(rates)
    return Order(line, pairs, ring, tree if cost > _GAIN * by_tree else None)


Cost = Callable[[Rates, Sequence[int]], float]


def _along_a_ring(rates: Rates, order: Sequence[int]) -> float:
    """Seconds per byte: each rank passes on 2 (n - 1) / n of the data."""
    slow = [1 / rates[one][other] for one, other in pairwise([*order, order[0]])]
    return 2 * (len(order) - 1) / len(order) * _mostly(slow)


def _halving(rates: Rates, order: Sequence[int]) -> float:
    """Seconds per byte: halves, quarters ... to partners at distances 1, 2, 4 ... and back."""
    total, share, distance = 0.0, 0.5, 1
    while distance < len(order):
        slow = [1 / rates[order[seat]][order[seat ^ distance]] for seat in range(len(order)) if not seat & distance]
        total += 2 * share * _mostly(slow)
        share, distance = share / 2, 2 * distance
    return total


def _mostly(slow: Sequence[float]) -> float:
    return max(slow) + _SPREAD * sum(slow) / len(slow)


def _searched(rates: Rates, cost: Cost) -> tuple[int, ...]:
    """The order of least cost. The first seat is free to choose: rings and halving are symmetric."""
    given = tuple(range(len(rates)))
    if len(given) <= _FEW:
        best = min(((0, *rest) for rest in permutations(given[1:])), key=lambda order: cost(rates, order))
    else:
        best = _swapped(rates, cost)
    return best if cost(rates, given) > _GAIN * cost(rates, best) else given


def _swapped(rates: Rates, cost: Cost) -> tuple[int, ...]:
    """Swap ranks of the given order as long as that helps."""
    order = list(range(len(rates)))
    least, before = cost(rates, order), math.inf
    while least < before:
        before = least
        for i, j in combinations(range(len(order)), 2):
            order[i], order[j] = order[j], order[i]
            if (now := cost(rates, order)) < least:
                least = now
            else:
                order[i], order[j] = order[j], order[i]
    return tuple(order)
