"""Checkpoints: of one rank and of all, into other buckets, and those that do not fit."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from algorithms.base import Bucket, Carry, Comm
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import SYNCHRONOUS, Make, adam, alone, network, qadam, train, weights
from tests.ranks import outcomes, run


def engine_of(comm: CountedComm, make: Make, size: int = 10**6) -> Engine:
    net = network()
    return Engine(net, adam(net), make(), comm, bucket_size=size)


def straight(comm: CountedComm, make: Make) -> Tensor:
    with engine_of(comm, make) as engine:
        return train(engine, comm, 10)


def reloaded(comm: CountedComm, make: Make) -> Tensor:
    """Its own live state is loaded into the engine that it is of."""
    with engine_of(comm, make) as engine:
        train(engine, comm, 5)
        engine.load_state_dict(engine.state_dict())
        return train(engine, comm, 5, first=5)


@pytest.mark.parametrize("make", SYNCHRONOUS)
def test_loading_one_s_own_state_changes_nothing(make: Make) -> None:
    for got, wanted in zip(run("threads", 2, reloaded, make), run("threads", 2, straight, make), strict=True):
        assert torch.equal(got, wanted)


def copies(engine: Engine) -> list[Any]:
    return copy.deepcopy([engine.model.state_dict(), engine.optimizer.state_dict(), engine.state_dict()])


def rebucketed(comm: CountedComm, make: Make, sizes: tuple[int, int]) -> Tensor:
    with engine_of(comm, make, sizes[0]) as engine:
        train(engine, comm, 5)
        saved = copies(engine)
    with engine_of(comm, make, sizes[1]) as engine:
        for part, state in zip((engine.model, engine.optimizer, engine), saved, strict=True):
            part.load_state_dict(state)
        assert engine.steps == 5
        return train(engine, comm, 5, first=5)


@pytest.mark.parametrize("make", [GradientAllReduce, Decentralized])
def test_a_checkpoint_goes_into_other_buckets(make: Make) -> None:
    expected = run("threads", 2, straight, make)
    for got, wanted in zip(run("threads", 2, rebucketed, make, (0, 10**6)), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("make", "keys"),
    [(qadam, {"sent_error"}), (LowPrecisionDecentralized, {"own", "left", "right"})],
)
def test_state_that_belongs_to_parameters_goes_into_other_buckets(make: Make, keys: set[str]) -> None:
    for before, after in run("threads", 2, moved_state, make):
        assert {key for state in before.values() for key in state} == keys
        for name, state in before.items():
            assert all(torch.equal(state[key], after[name][key]) for key in keys)


def moved_state(comm: CountedComm, make: Make) -> tuple[dict[str, Any], dict[str, Any]]:
    with engine_of(comm, make, 0) as engine:
        train(engine, comm, 6)
        saved = copies(engine)
    with engine_of(comm, make) as engine:
        for part, state in zip((engine.model, engine.optimizer, engine), saved, strict=True):
            part.load_state_dict(state)
        return saved[2]["parameters"], copy.deepcopy(engine.state_dict()["parameters"])


# -- what does not fit ----------------------------------------------------------------------------------------


def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    with engine_of(alone(), qadam) as engine:
        train(engine, engine.comm, 5)
        good, before = copy.deepcopy(engine.state_dict()), copies(engine)
        for change, message in (
            (lambda parameters: parameters.pop("0.weight"), r"0\.weight: only the engine has it"),
            (lambda parameters: parameters.update(more={}), "more: only the checkpoint has it"),
            (lambda parameters: parameters["2.bias"].pop("sent_error"), r"2\.bias: only the engine has sent_error"),
            (
                lambda parameters: parameters["2.bias"].update(own=torch.ones(1)),
                r"2\.bias: only the checkpoint has own",
            ),
            (
                lambda parameters: parameters["2.bias"].update(sent_error=torch.ones(2)),
                r"2\.bias: sent_error has shape \(2,\)",
            ),
        ):
            bad = copy.deepcopy(good)
            change(bad["parameters"])  # type: ignore[no-untyped-call]
            with pytest.raises(ValueError, match=message):
                engine.load_state_dict(bad)
            for now, then in zip(copies(engine), before, strict=True):
                assert dumped(now) == dumped(then)


def dumped(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def of_rank_0(comm: CountedComm, make: Make, saved: list[Any]) -> int:
    with engine_of(comm, make) as engine:
        for part, state in zip((engine.model, engine.optimizer, engine), saved, strict=True):
            part.load_state_dict(state)
        return engine.steps


def saved_state(comm: CountedComm, make: Make) -> list[Any]:
    with engine_of(comm, make) as engine:
        train(engine, comm, 5)
        return copies(engine)


def before_the_engine(comm: CountedComm, make: Make) -> None:
    """Model and optimizer are loaded first; Engine then gives all ranks rank 0's weights."""
    with engine_of(comm, make) as engine:
        train(engine, comm, 5)
        saved = copies(engine)
    net = network()
    net.load_state_dict(saved[0])
    with Engine(net, adam(net), make(), comm) as engine:
        engine.load_state_dict(saved[2])


@pytest.mark.parametrize("make", [Decentralized, LowPrecisionDecentralized])
def test_weights_of_one_rank_are_loaded_after_the_engine_is_made(make: Make) -> None:
    first, second = outcomes("threads", 2, before_the_engine, make)
    assert first is None, "rank 0's are what all ranks got"
    assert isinstance(second, ValueError) and "load the model after Engine is made" in str(second)


@pytest.mark.parametrize("make", [Decentralized, LowPrecisionDecentralized, qadam])
def test_another_rank_s_state_is_refused_where_ranks_differ(make: Make) -> None:
    saved = run("threads", 2, saved_state, make)[0]
    own, other = outcomes("threads", 2, of_rank_0, make, saved)
    assert own == 5
    assert isinstance(other, ValueError)
    assert "rank 0's of 2, this is rank 1 of 2" in str(other) and "engine.save(folder)" in str(other)


def test_another_rank_s_state_fits_where_ranks_are_equal() -> None:
    saved = run("threads", 2, saved_state, GradientAllReduce)[0]
    assert run("threads", 2, of_rank_0, GradientAllReduce, saved) == [5, 5]


class Remembering(GradientAllReduce):
    """Each rank keeps something of its own for every parameter."""

    carry: ClassVar = {"own": Carry.ZERO}

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: torch.optim.Optimizer) -> None:
        for bucket in buckets:
            bucket.each["own"] = [torch.full_like(view, comm.rank) for view in bucket.views(bucket.grad)]


def test_another_rank_s_state_is_refused_where_only_what_belongs_to_parameters_differs() -> None:
    saved = run("threads", 2, saved_state, Remembering)[0]
    own, other = outcomes("threads", 2, of_rank_0, Remembering, saved)
    assert own == 5 and isinstance(other, ValueError) and "rank 0's of 2" in str(other)


# -- all ranks in one folder ----------------------------------------------------------------------------------


def interrupted(comm: CountedComm, make: Make, folder: Path) -> tuple[Tensor, dict[str, Any]]:
    with engine_of(comm, make) as engine:
        train(engine, comm, 5)
        engine.save(folder, extra={"epoch": 3, "rank": comm.rank, "tensor": torch.full((2,), comm.rank)})
        train(engine, comm, 2, first=7)
    with engine_of(comm, make) as engine:
        extra = engine.load(folder)
        return train(engine, comm, 5, first=5), extra


@pytest.mark.parametrize("make", SYNCHRONOUS)
def test_all_ranks_continue_from_one_folder(make: Make, tmp_path: Path) -> None:
    expected = run("gloo", 2, straight, make)
    for rank, (got, extra) in enumerate(run("gloo", 2, interrupted, make, tmp_path / "step5")):
        assert torch.equal(got, expected[rank])
        assert extra["epoch"] == 3 and extra["rank"] == rank and torch.equal(extra["tensor"], torch.full((2,), rank))


def saves(comm: CountedComm, folder: Path) -> None:
    with engine_of(comm, qadam) as engine:
        train(engine, comm, 4)
        engine.save(folder)


def loads(comm: CountedComm, folder: Path, wide: bool) -> Tensor:
    if wide:
        net: Any = torch.nn.Linear(6, 2)
        with Engine(net, adam(net), QAdam(warmup_steps=3), comm) as engine:
            engine.load(folder)
    with engine_of(comm, qadam) as engine:
        before = train(engine, comm, 1).clone()
        with pytest.raises(ValueError, match="checkpoint"):
            engine.load(folder)
        assert torch.equal(weights(engine.model), before), "a checkpoint that was refused has changed something"
        return before


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    run("gloo", 2, saves, folder)
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        run("gloo", 2, saves, folder)
    with pytest.raises(ValueError, match=r"0\.weight: only the checkpoint has it|weight: only the model has it"):
        run("gloo", 2, loads, folder, True)
    run("gloo", 1, loads, tmp_path / "nothing", False)
    with pytest.raises(ValueError, match=r"process group of torch\.distributed"):
        run("threads", 2, saves, tmp_path / "threads")


def with_two(comm: CountedComm, folder: Path | None) -> Tensor:
    """Two optimizers of one model, one of them scheduled."""

    def made() -> Engine:
        net = network()
        optimizers = [
            torch.optim.SGD(net[0].parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(net[2].parameters(), lr=0.01),
        ]
        return Engine(net, optimizers, GradientAllReduce(), comm)

    engine = made()
    train(engine, comm, 5)
    if folder is not None:
        engine.save(folder)
        engine.close()
        engine = made()
        engine.load(folder)
    with engine:
        return train(engine, comm, 5, first=5)


def test_a_model_with_two_optimizers(tmp_path: Path) -> None:
    expected = run("gloo", 2, with_two, None)
    assert torch.equal(expected[0], expected[1])
    for got in run("gloo", 2, with_two, tmp_path / "step5"):
        assert torch.equal(got, expected[0])
    net = network()
    with pytest.raises(ValueError, match="Several: its lr means nothing to QAdam"):
        Engine(net, [torch.optim.Adam(net[0].parameters()), torch.optim.Adam(net[2].parameters())], qadam(), alone())


def on_other_ranks(comm: CountedComm, make: Make, folder: Path, first: bool) -> Tensor:
    with engine_of(comm, make) as engine:
        if first:
            train(engine, comm, 5)
            engine.save(folder)
        else:
            engine.load(folder)
            assert engine.steps == 5
        loaded = weights(engine.model).clone()
        train(engine, comm, 4, first=5)
        assert torch.isfinite(weights(engine.model)).all()
        return loaded


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
@pytest.mark.parametrize("make", SYNCHRONOUS)
def test_fewer_and_more_ranks_go_on_from_the_mean(make: Make, before: int, after: int, tmp_path: Path) -> None:
    saved = run("gloo", before, on_other_ranks, make, tmp_path / "step5", True)
    mean = torch.stack(saved).double().mean(0).to(saved[0].dtype)
    for loaded in run("gloo", after, on_other_ranks, make, tmp_path / "step5", False):
        torch.testing.assert_close(loaded, mean, rtol=1e-6, atol=1e-7)
