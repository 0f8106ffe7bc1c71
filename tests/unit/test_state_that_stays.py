"""Averages, schedules, moments and replicas stay what they are through restarts and loads of state."""

from __future__ import annotations

import copy
import time
import warnings
from collections import Counter, namedtuple
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from algorithms.async_model_average import AsyncModelAverage
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import adam, alone, data, fixed, loss, network, sgd, train, weights
from tests.ranks import run

Extra = namedtuple("Extra", "epoch best")


def reloaded_in_full_flight(comm: CountedComm, how: str) -> tuple[Tensor, Tensor]:
    """A learning rate of 0: nothing but averages of equal weights may happen to them."""
    net = fixed(nn.Sequential(nn.Linear(6, 2000), nn.Tanh(), nn.Linear(2000, 1)))
    with Engine(net, sgd(net, 0.0), AsyncModelAverage(interval_ms=1), comm) as engine:
        for k in range(20):
            if k % 5 == 4:
                engine.restart() if how == "restart" else engine.load_state_dict(engine.state_dict())
            train(engine, comm, 1, first=k)
            time.sleep(0.003)
        with engine.paused():
            return weights(fixed(copy.deepcopy(net))), weights(net)


@pytest.mark.parametrize("how", ["restart", "load"])
def test_averaging_rounds_survive_a_restart(how: str) -> None:
    for expected, got in run("threads", 2, reloaded_in_full_flight, how):
        torch.testing.assert_close(got, expected)


def loaded_and_scheduled(comm: CountedComm, folder: Path) -> float:
    net = network()
    optimizer = adam(net)
    schedule = LambdaLR(optimizer, lambda k: 0.5**k)
    with Engine(net, optimizer, QAdam(warmup_steps=2), comm) as engine:
        train(engine, comm, 3)
        engine.save(folder, {"best": Extra(3, 0.5), "counts": Counter("aab")})
        extra = engine.load(folder)
        assert extra == {"best": Extra(3, 0.5), "counts": Counter("aab")} and type(extra["best"]) is Extra
        for _ in range(3):
            train(engine, comm, 1)
            schedule.step()
        return float(engine.optimizer.param_groups[0]["lr"])


def test_schedules_of_an_optimizer_that_qadam_replaced_survive_a_load(tmp_path: Path) -> None:
    assert run("gloo", 2, loaded_and_scheduled, tmp_path / "x") == [0.01 / 8] * 2


def moments_after_a_load(comm: CountedComm, how: str) -> Tensor:
    net = network()
    earlier = adam(net)
    for k in range(10):
        loss(net, data(0, k)).backward()
        earlier.step()
        earlier.zero_grad()
    optimizer = adam(net)
    with Engine(net, optimizer, QAdam(warmup_steps=100), comm) as engine:
        optimizer.load_state_dict(copy.deepcopy(earlier.state_dict()))
        train(engine, comm, 5)
        if how == "rebuild":
            engine.rebuild()
        elif how == "reload":
            engine.load_state_dict(copy.deepcopy(engine.state_dict()))
        return train(engine, comm, 5, first=5)


@pytest.mark.parametrize("how", ["rebuild", "reload"])
def test_moments_that_were_loaded_stay(how: str) -> None:
    for got, wanted in zip(
        run("threads", 2, moments_after_a_load, how), run("threads", 2, moments_after_a_load, "nothing"), strict=True
    ):
        assert torch.equal(got, wanted)


def gossiped(comm: CountedComm, how: str) -> tuple[Tensor, Tensor]:
    """Weights after something was done, and after 60 steps of nothing but gossip."""
    net = network()
    optimizer = sgd(net)
    with Engine(net, optimizer, LowPrecisionDecentralized(), comm) as engine:
        train(engine, comm, 10)
        if how == "restart":
            engine.restart()
        else:
            net[0].requires_grad_(False)
            engine.rebuild()
            train(engine, comm, 5)
            net[0].requires_grad_(True)
            engine.rebuild()
        start = weights(net)
        optimizer.param_groups[0]["lr"] = 0.0
        return start, train(engine, comm, 60)


@pytest.mark.parametrize("how", ["restart", "thaw"])
def test_replicas_agree_with_neighbours_after_a_new_beginning(how: str) -> None:
    results = run("threads", 2, gossiped, how)
    ends = torch.stack([end for _, end in results])
    assert float((ends[0] - ends[1]).abs().max()) < 1e-3, "gossip does not bring them together"
    if how == "restart":
        assert torch.equal(results[0][0], results[1][0]), "rank 0's"


def test_what_qadam_replaces_has_no_state_to_save() -> None:
    net = network()
    optimizer = sgd(net)
    with warnings.catch_warnings(), Engine(net, optimizer, QAdam(lr=0.01), alone()):
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"save and load engine\.optimizer"):
            optimizer.state_dict()
    optimizer.state_dict()  # the engine is gone, and so are its hooks
    given = adam(net)
    for _ in range(3):
        Engine(net, given, QAdam(), alone()).close()
    assert not given._optimizer_load_state_dict_post_hooks


def part_of_a_model(comm: CountedComm) -> Tensor:
    net = network()
    with Engine(net, torch.optim.Adam(net[2].parameters(), lr=0.01), QAdam(warmup_steps=2), comm) as engine:
        return train(engine, comm, 6)


def test_qadam_with_an_optimizer_of_a_part_of_the_model() -> None:
    first, second = run("threads", 2, part_of_a_model)
    assert torch.equal(first, second)
    assert torch.equal(first[:35], weights(network())[:35]) and not torch.equal(first[35:], weights(network())[35:])
