"""Elastic training without its processes: the sampler, checkpoints, and what is told of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam import QAdam
from bagua_bench import Checkpoints
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.elastic.diary import BEGINS, TRAINS, Diary
from bagua_bench.engine.engine import Engine
from bagua_bench.results.result import Interruption, Life
from tasks.loading.elastic import ElasticSampler, Position
from tests.catalogue import resolved
from tests.habits import adam, network, sgd, train, weights
from tests.ranks import run


def samples(number: int) -> TensorDataset:
    return TensorDataset(torch.arange(number))


# -- the sampler ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_from_the_beginning_it_is_torchs(number: int, ranks: int, epoch: int, shuffle: bool) -> None:
    for rank in range(ranks):
        if number < ranks:
            break
        theirs = DistributedSampler(samples(number), ranks, rank, shuffle, seed=3, drop_last=True)
        ours = ElasticSampler(samples(number), ranks, rank, shuffle, seed=3)
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(theirs) and len(ours) == len(theirs)


@given(st.data())
def test_whoever_takes_part_every_sample_comes_once(data: st.DataObject) -> None:
    """Worlds of other sizes follow each other within an epoch; less than a step of the last one may be left out."""
    number, batch = data.draw(st.integers(20, 80)), data.draw(st.integers(1, 4))
    position, seen, size = Position(epoch=2), list[int](), 1
    while True:
        size, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
        if number - position.seen < size * batch:
            break
        loaders = []
        for rank in range(size):
            sampler = ElasticSampler(samples(number), size, rank, seed=5)
            sampler.set_epoch(position.epoch, position.seen)
            loaders.append(iter(DataLoader(samples(number), batch, sampler=sampler, drop_last=True)))
        for _ in range(min(steps, (number - position.seen) // (size * batch))):
            taken = [int(i) for loader in loaders for i in next(loader)[0]]
            assert len(taken) == size * batch
            seen += taken
            position = position.after(size * batch, number)
            assert position == Position(2, len(seen))
    assert max(Counter(seen).values()) == 1 and number - len(seen) < size * batch
    order = torch.randperm(number, generator=torch.Generator().manual_seed(5 + 2)).tolist()
    assert set(seen) == set(order[: len(seen)])


def test_the_next_epoch_begins_where_less_than_a_step_is_left() -> None:
    assert Position(0, 7).after(3, 10) == Position(0, 10)
    assert Position(0, 8).after(3, 10) == Position(1, 3)
    with pytest.raises(ValueError, match="number=11: an epoch has 10"):
        Position().after(11, 10)


@pytest.mark.parametrize(
    ("arguments", "seen", "said"),
    [((0, 0), 0, "num_replicas=0"), ((2, 2), 0, "rank=2: allowed: 0 to 1"), ((2, 0), 11, "seen=11: allowed: 0 to 10")],
)
def test_wrong_arguments_are_refused(arguments: tuple[int, int], seen: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ElasticSampler(samples(10), *arguments).set_epoch(0, seen)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def saved(comm: CountedComm, folder: Path, algorithm: Any, steps: int) -> Tensor:
    torch.manual_seed(comm.rank)
    net = network()
    with Engine(net, (adam if isinstance(algorithm, QAdam) else sgd)(net), algorithm, comm) as engine:
        kept = Checkpoints(folder, every=2, keep=2)
        assert kept.restore(engine) is None
        for k in range(steps):
            train(engine, comm, 1, first=k)
            if kept.due(engine):
                kept.save(engine, {"rank": comm.rank})
        return torch.cat([weights(net).flatten(), torch.rand(1)])


def resumed(comm: CountedComm, folder: Path, algorithm: Any, steps: int, first: int) -> tuple[Any, Tensor]:
    net = network()
    with Engine(net, (adam if isinstance(algorithm, QAdam) else sgd)(net), algorithm, comm) as engine:
        extra = Checkpoints(folder).restore(engine)
        assert engine.steps == first
        train(engine, comm, steps, first=first)
        return extra, torch.cat([weights(net).flatten(), torch.rand(1)])


@pytest.mark.parametrize("algorithm", [GradientAllReduce(), Decentralized(peers="all"), QAdam(warmup_steps=2)])
def test_training_goes_on_as_if_nothing_had_happened(tmp_path: Path, algorithm: Any) -> None:
    """Steps 5 and 6 are taken again, and random numbers go on, too."""
    whole = run("gloo", 2, saved, tmp_path / "whole", algorithm, 6)
    run("gloo", 2, saved, tmp_path / "part", algorithm, 5)
    kept = sorted(path.name for path in (tmp_path / "part").iterdir())
    assert kept == ["step-000000002", "step-000000004"]
    for rank, (extra, after) in enumerate(run("gloo", 2, resumed, tmp_path / "part", algorithm, 2, 4)):
        assert extra == {"rank": rank} and torch.equal(after, whole[rank])


def test_only_whole_checkpoints_count_and_only_the_newest_stay(tmp_path: Path) -> None:
    run("gloo", 2, saved, tmp_path, GradientAllReduce(), 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000004", "step-000000006"]
    (tmp_path / "step-000000006" / ".metadata").unlink()
    (tmp_path / "removed-step-000000002").mkdir()
    for size in (1, 3):
        extras = [extra for extra, _ in run("gloo", size, resumed, tmp_path, GradientAllReduce(), 1, 4)]
        assert extras == [{"rank": rank % 2} for rank in range(size)]
    run("gloo", 2, rewritten, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000004", "step-000000006"]


def rewritten(comm: CountedComm, folder: Path) -> None:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        kept = Checkpoints(folder, every=6)
        kept.restore(engine)
        train(engine, comm, 2, first=4)
        assert kept.due(engine)
        kept.save(engine)
        assert [path.name for path in kept.complete()] == ["step-000000004", "step-000000006"]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}])
def test_numbers_below_one_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=0: must be at least 1"):
        Checkpoints(tmp_path, **wrong)


# -- what is told -----------------------------------------------------------------------------------------------------


def test_the_diary_tells_lives_and_what_came_between() -> None:
    diary = Diary()
    assert diary.step == 0 and diary.told().lives == ()

    def life(ranks: int, after: int, steps: int, at: float) -> None:
        diary.note({"phase": BEGINS, "ranks": ranks, "after": after})
        for k in range(1, steps + 1):
            diary.note({"phase": TRAINS, "step": after + k, "at": at + k})

    life(3, 0, 25, 100.0)
    diary.happened("server 1 is lost")
    diary.note({"phase": BEGINS, "ranks": 3, "after": 20})  # one that took no step
    diary.note({"phase": "checking"})
    life(2, 20, 12, 130.0)
    life(2, 30, 2, 150.0)
    life(3, 34, 3, 160.0)  # without a restart, where another rank was further
    found = diary.told()
    assert diary.step == 37
    assert found.lives == (Life(3, 1, 25), Life(2, 21, 32), Life(2, 31, 32), Life(3, 35, 37))
    lost = Interruption("server 1 is lost", 25, 5, 131.0 - 125.0)
    failed = Interruption("a rank failed", 32, 2, 151.0 - 142.0)
    assert found.interruptions == (lost, failed, Interruption("a rank failed", 32, 0, 161.0 - 152.0))


# -- settings ---------------------------------------------------------------------------------------------------------

ON = ["run.elastic=true", "cluster.servers=3", "run.steps=40"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["algo=ddp"], ["algo=ddp", "system of its own"]),
        (["mode=emulate"], ["mode=emulate", "mode=measure"]),
        (["task=transformer", "task.sampler=balanced"], ["task.sampler=balanced", "task.sampler=null"]),
        (["run.autotune=true"], ["run.autotune", "undone"]),
        (["elastic.every=0"], ["elastic.every=0", "at least 1"]),
        (["elastic.servers=4"], ["elastic.servers=4", "at most cluster.servers=3"]),
        (["elastic.restarts=-1"], ["elastic.restarts=-1", "at least 0"]),
        (["elastic.regroup=true"], ["algo=gradient_allreduce cannot", "allowed: async, decentralized, decentr"]),
        (["elastic.regroup=true", "algo=async", "cluster.ranks_per_server=2"], ["ranks_per_server=2: allowed: 1"]),
        (["elastic.regroup=true", "algo=decentralized", "task=resnet50", "task.sync_bn=true"], ["sync_bn", "gone"]),
        (["elastic.outages=[3@5]"], ["elastic.outages=3@5", "servers 0 to 2"]),
        (["elastic.outages=[1@40]"], ["elastic.outages=1@40", "steps 1 to 39"]),
        (["elastic.outages=[1@20-20]"], ["elastic.outages=1@20-20", "later"]),
        (["elastic.outages=[1@5-20,1@10-30]"], ["elastic.outages=1@10-30", "still away since step 5"]),
        (["elastic.outages=[1@5,2@5]", "elastic.servers=2"], ["leaves 1 servers", "elastic.servers=2"]),
        (["elastic.outages=[soon]"], ["elastic.outages=soon", "SERVER@STEP"]),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_in_one_line(given: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(resolved("algo=gradient_allreduce", *ON, *given))
    assert "\n" not in str(refused.value) and all(text in str(refused.value) for text in said)


def test_a_record_without_it_says_nothing_of_it() -> None:
    assert "elastic" not in resolved("algo=ddp").to_json()["run"]
    cell = resolved("algo=gradient_allreduce", *ON, "elastic.outages=[1@5-20]")
    validate(cell)
    assert cell.to_json()["run"]["elastic"]["outages"] == [{"server": 1, "step": 5, "back": 20}]


def half_done(comm: CountedComm, folder: Path) -> list[str]:
    """A rank is lost in the middle of a checkpoint, and those that are left never come to that step again."""
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        kept = Checkpoints(folder)
        (folder / "step-000000003").mkdir(exist_ok=True)
        comm.barrier()
        train(engine, comm, 5)
        kept.save(engine)
        comm.barrier()
        return sorted(path.name for path in folder.iterdir())


def test_what_was_left_unfinished_goes_with_the_next(tmp_path: Path) -> None:
    assert run("gloo", 2, half_done, tmp_path) == [["step-000000005"]] * 2
