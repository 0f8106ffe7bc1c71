"""Positions in the data that ranks out of step leave behind, and what the next company of ranks makes of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain, count, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagua_bench.configuration.components import build
from tasks.base import Task
from tasks.loading.elastic import ElasticSampler, Position
from tests.catalogue import resolved

SEED = 5


class Company:
    """Ranks that began together: what each takes, batch after batch; written with lists alone, as a reference."""

    def __init__(self, size: int, batch: int, epoch: int, left: list[int], total: int) -> None:
        self.size, self.batch, self.epoch, self.left, self.total = size, batch, epoch, left, total

    def takes(self, rank: int, batches: int) -> list[tuple[int, int]]:
        """(epoch, sample) of each sample in so many batches."""
        endless = (
            [(epoch, sample) for sample in cut]
            for epoch in count(self.epoch)
            for cut in self._batches(rank, self.left if epoch == self.epoch else order(epoch, self.total))
        )
        return list(chain.from_iterable(islice(endless, batches)))

    def batches(self) -> int:
        """How many each rank has of the epoch."""
        return len(self.left) // (self.size * self.batch)

    def _batches(self, rank: int, left: list[int]) -> list[list[int]]:
        step, whole = self.size * self.batch, len(left) // (self.size * self.batch)
        cuts = [left[k * step : (k + 1) * step] for k in range(whole)]
        return [[cut[k] for k in range(step) if k % self.size == rank] for cut in cuts]


def order(epoch: int, total: int) -> list[int]:
    generator = torch.Generator().manual_seed(SEED + epoch)
    return [int(sample) for sample in torch.randperm(total, generator=generator)]


def through_json(position: Position) -> Position:
    again = Position(**json.loads(json.dumps(asdict(position))))
    assert again == position and hash(again) == hash(position)
    return again


def sampled(position: Position, size: int, rank: int, total: int) -> list[int]:
    """What the sampler gives a rank of the position's epoch."""
    sampler = ElasticSampler(range(total), size, rank, seed=SEED)  # type: ignore[arg-type]
    sampler.set_epoch(position.epoch, position.seen, position.shares)
    found = list(sampler)
    assert len(found) == len(sampler)
    return found


@settings(deadline=None)
@given(st.data())
def test_within_an_epoch_every_sample_comes_once(data: st.DataObject) -> None:
    """Companies out of step follow each other; less than a step of the last one is left out."""
    total, position, seen = data.draw(st.integers(1, 80)), Position(epoch=2), list[int]()
    while True:
        left = [sample for sample in order(2, total) if sample not in seen]
        assert position.left(order(2, total)) == left and position.number(total) == len(seen)
        company = Company(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)), 2, left, total)
        if not company.batches():
            break
        taken, leader = [], data.draw(st.integers(0, company.size - 1))  # who takes a batch at least, so that it ends
        for rank in range(company.size):
            behind = data.draw(st.integers(0, company.batches() - (rank == leader)))
            had = [sample for _, sample in company.takes(rank, company.batches() - behind)]
            assert sampled(position, company.size, rank, total)[: len(had)] == had
            taken.append(had)
        seen += chain.from_iterable(taken)
        counts = [len(had) for had in taken]
        after = position.after_apart(counts, total, company.batch)
        assert after == position.after_unequal(counts, total)
        position = through_json(after)
    assert len(set(seen)) == len(seen) and total - len(seen) < company.size * company.batch


@settings(deadline=None)
@given(st.data())
def test_across_epochs_only_what_is_forgotten_comes_twice(data: st.DataObject) -> None:
    total, position = data.draw(st.integers(1, 40)), Position()
    kept: dict[int, set[int]] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        size = data.draw(st.integers(1, min(4, total)))
        batch = data.draw(st.integers(1, min(3, total // size)))
        begun = kept.get(position.epoch, set())
        left = [sample for sample in order(position.epoch, total) if sample not in begun]
        company = Company(size, batch, position.epoch, left, total)
        taken = [company.takes(rank, data.draw(st.integers(0, 30))) for rank in range(size)]
        before, position = position, through_json(position.after_apart([len(had) for had in taken], total, batch))
        for epoch, sample in chain.from_iterable(taken):
            if epoch <= position.epoch:
                assert sample not in kept.setdefault(epoch, set())
                kept[epoch].add(sample)
        for epoch in range(before.epoch, position.epoch):
            assert total - len(kept.get(epoch, ())) < size * batch, "an epoch that is over is whole"
        rest = [sample for sample in order(position.epoch, total) if sample not in kept.get(position.epoch, ())]
        assert position.left(order(position.epoch, total)) == rest
        if any(epoch > position.epoch for epoch, _ in chain.from_iterable(taken)):
            assert len(rest) >= batch, "ranks ahead are taken back only for a rank that has batches left"


@settings(deadline=None)
@given(st.data())
def test_in_step_it_is_epoch_and_seen(data: st.DataObject) -> None:
    total, epoch, seen, position = data.draw(st.integers(1, 60)), 0, 0, Position()
    for _ in range(data.draw(st.integers(1, 5))):
        size = data.draw(st.integers(1, min(4, total)))
        batch, steps = data.draw(st.integers(1, min(3, total // size))), data.draw(st.integers(0, 30))
        stepwise = position
        for _ in range(steps):
            stepwise = stepwise.after(size * batch, total)
            epoch, seen = (epoch, seen) if total - seen >= size * batch else (epoch + 1, 0)
            seen += size * batch
        position = position.after_apart([steps * batch] * size, total, batch)
        assert position == stepwise == Position(epoch, seen)
        left = order(epoch, total)[seen:]
        assert position.left(order(epoch, total)) == left
        for rank in range(size):
            assert sampled(position, size, rank, total) == left[rank::size][: len(left) // size]


@settings(deadline=None)
@given(st.data())
def test_in_step_after_out_of_step_is_in_order(data: st.DataObject) -> None:
    """Steps in step take the next samples of what is left, and are one deal, however many they are."""
    total, size = data.draw(st.integers(4, 60)), data.draw(st.integers(2, 4))
    counts = data.draw(st.lists(st.integers(0, total // size), min_size=size, max_size=size))
    begin = Position(3).after_unequal(counts, total)
    left, position, had = begin.left(order(3, total)), begin, 0
    for number in data.draw(st.lists(st.integers(1, 4), max_size=20)):
        after = position.after(number, total)
        if number > len(left) - had:
            assert after == Position(4, number)
            break
        position, had = after, had + number
        assert position.left(order(3, total)) == left[had:]
    assert len(position.shares) <= len(begin.shares) + 1
    assert position == (begin.after(had, total) if had else begin)


def test_checkpoints_from_before_there_were_shares_are_read() -> None:
    assert Position(**json.loads('{"epoch": 2, "seen": 7}')) == Position(2, 7)


def test_it_says_what_ranks_have_had_besides() -> None:
    assert Position(1, 4).after_unequal([3, 3], 20) == Position(1, 10)
    assert Position(1, 4).after_unequal([3, 1], 20) == Position(1, 6, ((2, 0),))
    assert Position(1, 4, ((2, 0),)).left(range(10)) == [5, 7, 8, 9]
    assert Position(1, 4, ((2, 0),)).after_unequal([1, 0, 1], 10) == Position(1, 4, ((2, 0), (1, 0, 1)))
    assert Position(1, 4, ((2, 0),)).after(2, 10).after(1, 10) == Position(1, 4, ((2, 0), (3,)))
    assert Position(1, 4, ((2, 0),)).after(5, 10) == Position(2, 5)


def test_ranks_in_several_epochs_are_together_in_the_first() -> None:
    begin = Position(0, 2)  # of 12: two ranks with batches of 2 have 4 samples each, then 6 each
    assert begin.after_apart([4, 4], 12, batch=2) == Position(0, 10)
    assert begin.after_apart([10, 2], 12, batch=2) == Position(0, 6, ((2, 0),))
    assert begin.after_apart([10, 4], 12, batch=2) == Position(1, 0, ((6, 0),))
    assert begin.after_apart([14, 10], 12, batch=2) == Position(2, 0, ((4, 0),))
    assert begin.after_apart([0, 0], 12, batch=2) == begin


@pytest.mark.parametrize(
    ("seen", "shares", "said"),
    [
        (11, (), "seen=11: allowed: 0 to 10"),
        (-1, (), "seen=-1: allowed: 0 to 10"),
        (0, ((1, -1),), r"shares=\[1, -1\]: rank 1 has had -1; allowed: 0 to 5"),
        (5, ((3, 0), (0, 2)), r"shares=\[0, 2\]: rank 1 has had 2; allowed: 0 to 1"),
        (5, ((3, 3),), r"shares=\[3, 3\]: rank 1 has had 3; allowed: 0 to 2"),
        (0, ((),), "shares: a deal is to at least 1 rank"),
    ],
)
def test_what_an_epoch_does_not_have_is_refused(seen: int, shares: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ElasticSampler(range(10), 1, 0).set_epoch(0, seen, shares)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        Position(0, seen, shares).left(range(10))


@pytest.mark.parametrize(
    ("taken", "batch", "said"),
    [
        ([3, -1], 1, r"shares=\[3, -1\]: rank 1 has had -1"),
        ([], 1, "0 ranks x batch=1: allowed: 1 to 10 samples"),
        ([0, 0], 6, "2 ranks x batch=6: allowed: 1 to 10 samples"),
        ([0, 0], 0, "2 ranks x batch=0: allowed: 1 to 10 samples"),
    ],
)
def test_reports_that_do_not_fit_are_refused(taken: list[int], batch: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Position().after_apart(taken, 10, batch)


def task(name: str) -> Any:
    part = resolved(f"task={name}", "task.scale=tiny").task
    made = build(part.target, part.options)
    assert isinstance(made, Task)
    return made


def test_a_data_set_goes_on_with_what_is_left_of_every_share() -> None:
    made, size = task("vgg16"), 3
    total = made.samples_per_epoch
    begin = Position(1, 10).after_apart([5 * made.batch, 0, 2 * made.batch], total, made.batch)
    generator = torch.Generator().manual_seed(SEED + begin.epoch)
    left = begin.left(torch.randperm(total, generator=generator).tolist())
    for rank in range(2):
        share = iter(left[rank::2])
        for images, labels in islice(made.resumed(rank, 2, SEED, begin), size):
            expected = [made._train[i] for i in islice(share, made.batch)]
            assert torch.equal(images, torch.stack([image for image, _ in expected]))
            assert labels.tolist() == [label for _, label in expected]


def test_a_stream_goes_on_with_batches_that_did_not_come_before() -> None:
    made, begin = task("transformer"), Position()
    came = [next(made.resumed(rank, 2, SEED, begin)) for rank in range(2)]
    for counts in ([made.batch, 0], [made.batch, 2 * made.batch]):
        begin = begin.after_apart(counts, made.samples_per_epoch, made.batch)
        new = [next(made.resumed(rank, 2, SEED, begin)) for rank in range(2)]
        assert not any(torch.equal(a[0], b[0]) for a in new for b in came)
        came += new
