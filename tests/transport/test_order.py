"""The order in which collectives go through the ranks: any is right, and the measured one avoids slow lines."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.transport import joining, order, trees
from bagua_bench.transport.native import Group
from bagua_bench.transport.order import Order
from tests.ranks import outcomes, run
from tests.transport import test_torch, test_torch_failures
from tools.transport import orders, shaped, torch_bench


def _arranged(comm: TorchComm, ranks: list[int], ring: bool, count: int) -> None:
    comm.group = dist.new_group(backend="bagua_net")
    comm.group._native.arrange(ranks, ranks[::-1], ring)
    test_torch._beside_gloo(comm, count)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("count", [6, 300_000])
@pytest.mark.parametrize(
    ("ranks", "ring"), [([1, 0], False), ([2, 0, 1], False), ([3, 1, 0, 2], False), ([3, 1, 0, 2], True)]
)
def test_every_collective_gives_what_gloo_gives_in_any_order(ranks: list[int], ring: bool, count: int) -> None:
    run("bagua_net", len(ranks), _arranged, ranks, ring, count)


def _along_a_tree(comm: TorchComm, tree: list[int]) -> None:
    group: Any = dist.new_group(backend="bagua_net")
    group._native.arrange(list(range(comm.size)), list(range(comm.size)), tree=tree)
    comm.group = group
    test_torch._reductions(comm)
    large = torch.arange(6_000_001.0) % 1000
    dist.all_reduce(large, group=group)
    assert torch.equal(large, torch.arange(6_000_001.0) % 1000 * comm.size), "in more slices than are under way"
    test_torch._beside_gloo(comm, 300_000)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("tree", [[1, -1], [1, 2, -1], [3, 3, 3, -1], [-1, 0, 0, 1, 1]])
def test_reductions_along_a_tree(tree: list[int]) -> None:
    run("bagua_net", len(tree), _along_a_tree, tree)


def _dies_in_a_tree(comm: TorchComm, tree: list[int]) -> float:
    group: Any = dist.new_group(backend="bagua_net")
    group._native.arrange(list(range(comm.size)), list(range(comm.size)), tree=tree)
    comm.group = group
    return test_torch_failures._die(comm, lent=False)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("tree", [[-1, 0, 1, 1], [-1, 0, 0, 2], [1, -1, 1, 1]])
def test_a_rank_of_a_tree_that_dies_is_an_error_within_a_second(tree: list[int]) -> None:
    survivors = outcomes("bagua_net", 4, _dies_in_a_tree, tree)
    del survivors[1]
    assert all(isinstance(seconds, float) and seconds < 1.0 for seconds in survivors)


def _reduces(comm: TorchComm, ranks: list[int], ring: bool, tree: list[int] | None) -> bytes:
    group: Any = dist.new_group(backend="bagua_net")
    group._native.arrange(ranks, ranks[::-1], ring, tree)
    x = torch.arange(200_003.0) * (comm.rank + 1) / 7
    dist.all_reduce(x, group=group)
    wanted = torch.arange(200_003.0) * sum(range(1, comm.size + 1)) / 7
    assert torch.allclose(x, wanted, rtol=1e-5)
    parts = torch.full((comm.size, 20_000), float(comm.rank + 1))
    own = torch.empty(20_000)
    dist.reduce_scatter_tensor(own, parts.flatten() * torch.arange(comm.size).repeat_interleave(20_000), group=group)
    assert own.eq(comm.rank * sum(range(1, comm.size + 1))).all()
    return x.numpy().tobytes()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("way", ["halving", "ring", "tree"])
@pytest.mark.parametrize("size", [7, 8])
def test_all_ranks_get_the_same_bits(size: int, way: str) -> None:
    ranks = Random(size).sample(range(size), size)
    tree = [2, 2, -1, 2, 3, 3, 4, 6][:size] if way == "tree" else None
    assert len(set(run("bagua_net", size, _reduces, ranks, way == "ring", tree))) == 1


def _counted(comm: TorchComm) -> tuple[int, int]:
    group: Any = dist.new_group(backend="bagua_net")
    group._native.arrange([0, 1, 2, 3], [0, 1, 2, 3], tree=[-1, 0, 0, 1])
    dist.all_reduce(torch.ones(1_000_000), group=group)
    reports = [stream for peer in range(4) for stream in group._native.report(peer, 0) if peer != comm.rank]
    return sum(one["bytes_sent"] for one in reports), sum(one["bytes_received"] for one in reports)


@pytest.mark.usefixtures("built")
def test_along_a_tree_the_data_goes_once_to_each_neighbour() -> None:
    for (sent, received), neighbours in zip(run("bagua_net", 4, _counted), (2, 2, 1, 1), strict=True):
        assert 4e6 * neighbours <= sent < 4.2e6 * neighbours
        assert 4e6 * neighbours <= received < 4.2e6 * neighbours


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("wrong", [[0, 0], [1, 2], [0], [0, 1, 2]])
def test_an_order_has_every_rank_once(wrong: list[int]) -> None:
    group = Group(0, 2)
    for line, pairs, name in ((wrong, [0, 1], "line"), ([1, 0], wrong, "pairs")):
        with pytest.raises(ValueError, match=f"{name}=.*allowed: each of 2 ranks once"):
            group.arrange(line, pairs)
    group.close()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("wrong", [[-1, -1, 0], [1, 0, -1], [1, 2, 0], [-1, 3, 0], [-1, 1, 0], [-2, 0, 0], [-1, 0]])
def test_a_tree_has_one_root_with_all_other_ranks_below_it(wrong: list[int]) -> None:
    group = Group(0, 3)
    with pytest.raises(ValueError, match=r"tree=.*allowed: a parent of each of 3 ranks, -1 of the root"):
        group.arrange([0, 1, 2], [0, 1, 2], tree=wrong)
    group.arrange([0, 1, 2], [0, 1, 2], tree=[1, -1, 1])
    group.close()


def _settled(comm: TorchComm) -> Order | None:
    group: Any = dist.new_group(backend="bagua_net")
    return order.settle(group._native, 60.0)


def _asked_for(comm: TorchComm) -> None:
    os.environ[joining.ORDER] = joining.MEASURED
    comm.group = dist.new_group(backend="bagua_net")
    test_torch._beside_gloo(comm, 300_000)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("size", [3, 4, 9])
def test_all_ranks_choose_the_same(size: int) -> None:
    found = run("bagua_net", size, _settled)
    assert found == found[:1] * size
    assert sorted(found[0].line) == sorted(found[0].pairs) == list(range(size))


@pytest.mark.usefixtures("built")
def test_two_ranks_have_nothing_to_choose() -> None:
    assert run("bagua_net", 2, _settled) == [None, None]


@pytest.mark.usefixtures("built")
def test_a_variable_asks_for_it() -> None:
    run("bagua_net", 3, _asked_for)


def _wrong(comm: TorchComm) -> None:
    os.environ[joining.ORDER] = "best"
    dist.new_group(backend="bagua_net")


@pytest.mark.usefixtures("built")
def test_another_value_is_refused() -> None:
    for outcome in outcomes("bagua_net", 2, _wrong):
        assert "BAGUA_NET_ORDER=best: allowed: given, measured" in str(outcome)


def _tried(comm: TorchComm, quick: bool, lossy: bool) -> tuple[int, ...] | None:
    """What is settled where the rates promise much of a tree, and all-reduces along it are quick, or all others are."""
    native: Any = dist.new_group(backend="bagua_net")._native
    if lossy:
        native.use_int8()
    used: list[tuple[int, ...] | None] = []
    held = native.all_reduce

    def arrange(line: Any, pairs: Any, ring: bool, tree: Any = None) -> None:
        used.append(tree)
        Group.arrange(native, line, pairs, ring, tree)

    def all_reduce(address: int, count: int, *rest: Any) -> None:
        if count > 1 and (used[-1] is None) == quick:
            time.sleep(0.3)
        held(address, count, *rest)

    native.arrange, native.all_reduce = arrange, all_reduce
    rates = [[1e5 if 2 in (one, other) else 1e9 for other in range(3)] for one in range(3)]
    order.survey = lambda *_: rates  # type: ignore[assignment]
    settled = order.settle(native, 60.0)
    assert settled
    assert used[-1] == settled.tree, "it is in use"
    return settled.tree


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("quick", "lossy", "used"), [(True, False, True), (False, False, False), (True, True, False)])
def test_a_tree_is_used_only_where_it_has_shown_that_it_is_faster(quick: bool, lossy: bool, used: bool) -> None:
    """And not where sums are lossy: those would not go along it."""
    found = run("bagua_net", 3, _tried, quick, lossy)
    assert found == found[:1] * 3
    assert (found[0] is not None) == used


@pytest.mark.parametrize("size", range(2, 12))
def test_a_survey_has_every_pair_once(size: int) -> None:
    rounds = list(order._rounds(size))
    pairs = Counter(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
    assert pairs == Counter(combinations(range(size), 2))
    assert len(rounds) == size - 1 + size % 2
    assert all(max(Counter(rank for pair in pairs for rank in pair).values()) == 1 for pairs in rounds)


def _seconds(rates: list[list[float]], ranks: tuple[int, ...], ring: bool) -> float:
    """Of an all-reduce of one byte whose steps begin together, step by step."""
    size, seconds = len(ranks), 0.0
    if ring:
        for _ in range(2 * (size - 1)):
            seconds += max(1 / size / rates[ranks[k]][ranks[(k + 1) % size]] for k in range(size))
        return seconds
    for bit in range(size.bit_length() - 1):
        pairs = [(k, k ^ 1 << bit) for k in range(size)]
        seconds += 2 * max(0.5 ** (bit + 1) / rates[ranks[one]][ranks[other]] for one, other in pairs)
    return seconds


def _drawn(size: int, luck: Random) -> list[list[float]]:
    rates = [[0.0] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        rates[one][other] = rates[other][one] = 10 ** luck.uniform(6, 9)
    return rates


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("seed", range(20))
def test_no_other_order_is_faster(size: int, seed: int) -> None:
    rates = _drawn(size, Random(seed))
    ways = [True] if size % 2 else [True, False]
    least = min(_seconds(rates, ranks, ring) for ranks in permutations(range(size)) for ring in ways)
    found = order.best(rates)
    assert _seconds(rates, found.used, found.ring) <= least * 1.12
    least = min(_seconds(rates, ranks, True) for ranks in permutations(range(size)))
    assert _seconds(rates, found.line, True) <= least * (1.12 if found.line == tuple(range(size)) else 1.02)


@pytest.mark.parametrize("size", [9, 16])
@pytest.mark.parametrize("seed", range(5))
def test_of_many_ranks_it_is_better_than_the_given_and_than_orders_drawn_by_lot(size: int, seed: int) -> None:
    luck = Random(seed)
    rates, given = _drawn(size, luck), tuple(range(size))
    found = order.best(rates)
    others = [given, *(tuple(luck.sample(given, size)) for _ in range(20))]
    assert _seconds(rates, found.line, True) <= min(_seconds(rates, one, True) for one in others)
    if size == 16:
        assert _seconds(rates, found.pairs, False) <= min(_seconds(rates, one, False) for one in others)


def test_where_all_lines_are_alike_nothing_changes() -> None:
    luck = Random(1)
    for size in (3, 8, 16):
        rates = [[1e8 * luck.uniform(0.97, 1.03) for _ in range(size)] for _ in range(size)]
        assert order.best(rates) == Order(tuple(range(size)), tuple(range(size)), ring=size == 3)


def _trees(size: int) -> Iterator[tuple[int, ...]]:
    """Every tree, of every root."""
    for parents in product(range(-1, size), repeat=size):
        ways = [_way_up(parents, rank) for rank in range(size)]
        if parents.count(-1) == 1 and all(way[-1] == -1 for way in ways):
            yield parents


def _way_up(parents: tuple[int, ...], rank: int) -> list[int]:
    way = [rank]
    while way[-1] >= 0 and len(way) <= len(parents):
        way.append(parents[way[-1]])
    return way


def _seconds_along(rates: list[list[float]], tree: tuple[int, ...]) -> float:
    """Of an all-reduce of one byte, where a rank's line carries as much as the fastest of its pairs."""
    taken = [1 / rates[rank][parent] for rank, parent in enumerate(tree) if parent >= 0]
    for rank, row in enumerate(rates):
        neighbours = tree.count(rank) + (tree[rank] >= 0)
        taken.append(neighbours / max(rate for other, rate in enumerate(row) if other != rank))
    return max(taken)


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("seed", range(10))
def test_no_other_tree_is_faster_where_ranks_have_lines_of_their_own(size: int, seed: int) -> None:
    lines = [10 ** Random(f"{seed} {rank}").uniform(6, 9) for rank in range(size)]
    rates = [[min(lines[one], lines[other]) for other in range(size)] for one in range(size)]
    tree, seconds = trees.best(rates)
    assert tree in set(_trees(size))
    assert _seconds_along(rates, tree) == pytest.approx(seconds)
    assert seconds == pytest.approx(min(_seconds_along(rates, one) for one in _trees(size)))


@pytest.mark.parametrize("seed", range(20))
def test_nor_is_one_whatever_the_rates(seed: int) -> None:
    rates = _drawn(4, Random(seed))
    tree, seconds = trees.best(rates)
    assert _seconds_along(rates, tree) == pytest.approx(seconds)
    assert seconds == pytest.approx(min(_seconds_along(rates, one) for one in _trees(4)))


def test_a_rank_that_needs_another_one_gets_it() -> None:
    """Rank 3 has one good line, to a rank that could be everyone's parent."""
    rates = [[1.0 if {one, other} in ({3, 1}, {3, 2}, {3, 4}) else 10.0 for other in range(5)] for one in range(5)]
    assert trees.best(rates)[1] == pytest.approx(0.2)


def test_a_slow_rank_is_a_leaf_and_a_tree_is_written_with_ranks_behind_their_parents() -> None:
    rates = [[2e6 if 3 in (one, other) else 2e7 for other in range(8)] for one in range(8)]
    found = order.best(rates)
    assert found.tree is not None
    assert found.tree.count(3) == 0
    assert found.tree[3] >= 0
    text = str(replace(found, tree=(1, -1, 1, 0, 3, 1, 7, 1)))
    assert text.startswith("a tree of ranks 1 (0 (3 (4)), 2, 5, 7 (6)), halving of ranks ")


@pytest.mark.usefixtures("built")
def test_a_slow_line_is_found_and_left_alone() -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)
    slow = (0, 1)  # which would exchange halves
    with shaped.star(4) as (_, sites), torch_bench.ranks("tools.transport.order_rank", sites, 1, {}) as ranks:
        for rank, site in enumerate(sites):
            others = {other: sites[other].address for other in range(4) if other != rank}
            shaped.limit_towards(site, {others[k]: 10e6 if {rank, k} == set(slow) else 100e6 for k in others})
        answers = orders.ask(ranks, {"survey": True})
    rates = answers[0]["rates"]
    assert all(answer["rates"] == rates for answer in answers)
    found = {pair: rates[pair[0]][pair[1]] for pair in combinations(range(4), 2)}
    assert found.pop(slow) * 3 < min(found.values())
    chosen = order.best(rates)
    assert abs(chosen.line.index(0) - chosen.line.index(1)) == 2, "no neighbours on a ring"
    assert chosen.pairs.index(0) ^ chosen.pairs.index(1) == 3, "never partners"


def test_the_kinds_of_order_are_all_there_are() -> None:
    """Of all orders of eight ranks, each costs as much as one of the kinds that the comparison tries."""
    rates = [[2e7 if {one, other} == {2, 6} else 2e8 for other in range(8)] for one in range(8)]
    luck = Random(3)
    kinds = [kind for kind in orders.of_a_pair((2, 6), luck) if kind.name != orders.MEASURED]
    tried = {(kind.ring, round(_seconds(rates, kind.ranks, kind.ring) * 1e12)) for kind in kinds}
    for ranks in luck.sample(list(permutations(range(8))), 2000):
        for ring in (True, False):
            assert (ring, round(_seconds(rates, ranks, ring) * 1e12)) in tried
