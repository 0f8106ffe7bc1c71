"""Load-balanced samplers: nothing lost, nothing twice, ranks alike; and errors for arguments that do not fit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from tasks.loading.balanced import (
    LoadBalancedBatchSampler,
    LoadBalancedSampler,
    in_order,
    of_similar_length,
)

COMPLEXITIES = st.lists(st.integers(0, 50), min_size=1, max_size=60)
SETTINGS = {
    "shuffle": st.booleans(),
    "seed": st.integers(0, 2**31),
    "drop_last": st.booleans(),
    "random_level": st.floats(0, 1),
}


def samplers(complexities: list[int], ranks: int, epoch: int = 0, **options: Any) -> list[LoadBalancedSampler]:
    made = [LoadBalancedSampler(complexities, complexities, ranks, rank, **options) for rank in range(ranks)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


@settings(deadline=None)
@given(COMPLEXITIES, st.integers(1, 9), st.integers(0, 3), st.fixed_dictionaries(SETTINGS))
def test_no_sample_is_lost_and_none_comes_twice(
    complexities: list[int], ranks: int, epoch: int, options: dict[str, Any]
) -> None:
    count = len(complexities)
    made = samplers(complexities, ranks, epoch, **options)
    own = [list(sampler) for sampler in made]
    assert {len(indices) for indices in own} == {len(made[0])}
    seen = Counter(index for indices in own for index in indices)
    total = ranks * len(made[0])
    if count < ranks:  # the documented minimum: one sample per rank
        assert len(made[0]) == 1 and len(seen) == count
    elif options["drop_last"]:
        assert set(seen.values()) == {1} and 0 <= count - total < ranks
    else:
        assert len(seen) == count and 0 <= total - count < ranks
        assert max(seen.values()) <= 2
    assert [list(sampler) for sampler in made] == own, "an epoch is the same when it is asked for again"


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(1, 9), st.booleans())
def test_without_noise_a_group_has_neighbours_in_the_order_of_complexity(
    complexities: list[int], ranks: int, shuffle: bool
) -> None:
    """Judged by the sorted list itself: the groups are exactly its consecutive pieces."""
    whole = complexities * ranks  # divides evenly
    own = [list(sampler) for sampler in samplers(whole, ranks, shuffle=shuffle)]
    found = sorted(sorted(whole[index] for index in group) for group in zip(*own, strict=True))
    ordered = sorted(whole)
    assert found == [ordered[k : k + ranks] for k in range(0, len(ordered), ranks)]
    if not shuffle:
        assert [min(whole[i] for i in group) for group in zip(*own, strict=True)] == ordered[::ranks]


def test_every_rank_gets_the_heaviest_of_a_group_in_turn() -> None:
    own = [list(sampler) for sampler in samplers(list(range(4 * 100)), 4)]
    heaviest = [max(range(4), key=group.__getitem__) for group in zip(*own, strict=True)]
    assert Counter(heaviest) == dict.fromkeys(range(4), 25)
    assert all(heaviest[k : k + 4] != heaviest[:1] * 4 for k in range(96))


def test_epochs_and_seeds_have_orders_of_their_own_and_no_shuffling_has_one() -> None:
    complexities = list(range(100))

    def order(epoch: int, **options: Any) -> list[int]:
        return list(samplers(complexities, 4, epoch, **options)[1])

    assert len({tuple(order(0)), tuple(order(1)), tuple(order(0, seed=7))}) == 3
    assert order(3, shuffle=False) == order(0, shuffle=False)


def test_what_drop_last_leaves_out_differs_between_epochs() -> None:
    complexities = list(range(11))
    left_out = set()
    for epoch in range(30):
        seen = {index for sampler in samplers(complexities, 4, epoch, drop_last=True) for index in sampler}
        left_out |= set(complexities) - seen
    assert left_out == set(complexities), "the longest samples would never be learned"


def test_noise_trades_balance_for_randomness() -> None:
    complexities = torch.randint(0, 1000, (4000,), generator=torch.Generator().manual_seed(5)).tolist()

    def spread(level: float) -> float:
        own = [list(sampler) for sampler in samplers(complexities, 4, random_level=level)]
        groups = [[complexities[index] for index in group] for group in zip(*own, strict=True)]
        return sum(max(group) - min(group) for group in groups) / len(groups)

    found = [spread(level) for level in (0.0, 0.1, 0.5, 1.0)]
    assert found == sorted(found) and found[0] < 2
    assert found[1] < 0.3 * found[3]


def test_a_function_is_asked_once_for_every_sample_and_ranks_come_from_the_arguments() -> None:
    asked = []

    def complexity(sample: str) -> int:
        asked.append(sample)
        return len(sample)

    data = ["a", "bbb", "cc", "dddd"]
    sampler = LoadBalancedSampler(data, complexity, 2, 1, shuffle=False)
    assert asked == data and len(sampler) == 2
    other = LoadBalancedSampler(data, complexity, 2, 0, shuffle=False)
    assert [{data[i] for i in pair} for pair in zip(sampler, other, strict=True)] == [{"a", "cc"}, {"bbb", "dddd"}]
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    assert len(next(iter(loader))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 0, "rank": 0}, "num_replicas=0: must be at least 1"),
        ({"num_replicas": 2, "rank": 2}, "rank=2: allowed: 0 to 1"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1: allowed: 0 to 1"),
        ({"random_level": 1.5}, "random_level=1.5: allowed: 0 to 1"),
        ({"complexity": [1, 2.5]}, "complexity of sample 1 is 2.5: must be an integer"),
        ({"complexity": lambda sample: sample / 2}, "complexity of sample 1 is 0.5: must be an integer"),
        ({"complexity": [1]}, r"complexity: expected 2 integers, one per sample, got torch.int64 \[1\]"),
        ({"complexity": torch.ones(2)}, r"expected 2 integers, one per sample, got torch.float32 \[2\]"),
        ({"dataset": []}, "dataset: has no samples"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    given = {"dataset": [0, 1], "complexity": [1, 2], "num_replicas": 1, "rank": 0, **options}
    with pytest.raises(ValueError, match=message):
        LoadBalancedSampler(**given)


def test_ranks_are_the_default_group_s_where_they_are_not_given() -> None:
    with pytest.raises((ValueError, RuntimeError), match="process group"):
        LoadBalancedSampler([0, 1], [1, 2])


def batched(ranks: int, complexities: list[int], batch_fn: Any, drop_last: bool = False) -> list[list[list[int]]]:
    made = [LoadBalancedBatchSampler(sampler, batch_fn, drop_last) for sampler in samplers(complexities, ranks)]
    for sampler in made:
        sampler.set_epoch(2)
    assert {len(sampler) for sampler in made} == {len(list(made[0]))}
    return [list(sampler) for sampler in made]


def budget(lengths: list[int], most: int) -> Any:
    """Batches of at most `most` tokens with padding: a `batch_fn` as users write them."""

    def cut(indices: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for index in indices:
            longest = max([lengths[i] for i in batches[-1]] + [lengths[index]])
            if batches[-1] and longest * (len(batches[-1]) + 1) > most:
                batches.append([])
            batches[-1].append(index)
        return batches

    return cut


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=80), st.integers(1, 6), st.booleans())
def test_all_ranks_have_as_many_batches_and_every_sample_is_in_one(
    lengths: list[int], ranks: int, drop_last: bool
) -> None:
    lengths = lengths * ranks  # nothing is padded by the sampler
    own = batched(ranks, lengths, budget(lengths, 40), drop_last)
    assert len({len(batches) for batches in own}) == 1
    seen = {index for batches in own for batch in batches for index in batch}
    if drop_last:
        assert len(seen) == sum(len(batch) for batches in own for batch in batches)
    else:
        assert seen == set(range(len(lengths)))
        for batches in own:
            first = batches.index(batches[0], 1) if batches[0] in batches[1:] else len(batches)
            assert batches[first:] == batches[: len(batches) - first], "padding is the rank's own first batches again"


def test_a_rank_with_fewer_batches_repeats_its_first_ones() -> None:
    def cut(indices: list[int]) -> list[list[int]]:
        return [[i] for i in indices] if 0 in indices else [indices]

    own = batched(2, list(range(6)), cut)
    lengths = sorted(len({tuple(batch) for batch in batches}) for batches in own)
    assert lengths == [1, 3] and [len(batches) for batches in own] == [3, 3]
    assert [len(batches) for batches in batched(2, list(range(6)), cut, drop_last=True)] == [1, 1]


def test_batches_over_torch_s_own_sampler() -> None:
    data = list(range(40))
    made = [LoadBalancedBatchSampler(DistributedSampler(data, 4, rank), in_order(5)) for rank in range(4)]
    assert sorted(index for sampler in made for batch in sampler for index in batch) == data
    assert list(made[2]) == [[*made[2].sampler][:5], [*made[2].sampler][5:]]
    assert len(list(DataLoader(data, batch_sampler=made[1]))) == 2


def test_batch_samplers_refuse_what_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="sampler: has drop_last=True; allowed: False"):
        LoadBalancedBatchSampler(LoadBalancedSampler([1, 2], [1, 2], 1, 0, drop_last=True), in_order(1))
    sampler = LoadBalancedBatchSampler(LoadBalancedSampler([1, 2], [1, 2], 2, 0), in_order(3))
    with pytest.raises(ValueError, match="batch_fn: made no batch for rank 0"):
        len(sampler)


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=10, max_size=200), st.integers(1, 5), st.integers(1, 4))
def test_batches_of_similar_length_hold_the_same_samples(lengths: list[int], size: int, window: int) -> None:
    indices = list(range(len(lengths)))
    batches = of_similar_length(lengths, size, window)(indices)
    whole = len(lengths) // size * size
    assert sorted(i for batch in batches for i in batch) == indices[:whole]
    assert {len(batch) for batch in batches} == {size}

    def padded(cut: list[list[int]]) -> int:
        return sum(size * max(lengths[i] for i in batch) for batch in cut)

    assert padded(batches) <= padded([list(batch) for batch in in_order(size)(indices)])


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=60, unique=True), st.integers(2, 9))
def test_the_lightest_come_twice_beside_their_like(complexities: list[int], ranks: int) -> None:
    """Every group is a piece of the sorted list in which the first ones stand twice."""
    own = [list(sampler) for sampler in samplers(complexities, ranks, shuffle=False)]
    groups = [sorted(complexities[index] for index in group) for group in zip(*own, strict=True)]
    copies = len(own[0]) * ranks - len(complexities)
    if copies <= len(complexities):
        ordered = sorted([*complexities, *sorted(complexities)[:copies]])
        assert groups == [ordered[k : k + ranks] for k in range(0, len(ordered), ranks)]
