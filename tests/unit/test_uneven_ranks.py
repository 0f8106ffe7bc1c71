"""Ranks that fail in a step, have fewer batches than others, or see other data in their batch norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.contract.test_algorithms import wait_for_a_round
from tests.habits import (
    ALL,
    GRADIENTS,
    SYNCHRONOUS,
    WEIGHTS,
    Make,
    adam,
    alone,
    asynchronous,
    data,
    fixed,
    loss,
    network,
    qadam,
    sgd,
    weights,
)  # fmt: skip
from tests.ranks import run


def slow_qadam() -> QAdam:
    return QAdam(lr=0.01, warmup_steps=3)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise MemoryError("out of memory")


def gives_up(comm: CountedComm, make: Make, where: str) -> Tensor:
    net = network()
    with Engine(net, adam(net), make(), comm, bucket_size=0) as engine:
        for k in range(6):
            try:
                x = data(comm.rank, k)
                fails = comm.rank == 1 and k == 3
                if fails and where == "forward":
                    net(x)
                    raise MemoryError
                hidden = net[1](net[0](x))
                out = net[2](Failing.apply(hidden) if fails else hidden)
                (out - x.sum(1, keepdim=True)).square().mean().backward()
            except MemoryError:
                engine.give_up()
            engine.step()
        with engine.paused():
            return weights(net)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("make", ALL)
def test_a_rank_may_give_up_a_step(make: Make, where: str) -> None:
    results = run("threads", 2, gives_up, make, where)
    assert all(w.isfinite().all() for w in results)
    if make().consensus == 0:
        assert torch.equal(results[0], results[1]), "replicas differ"


def gives_up_mean(comm: CountedComm) -> Tensor:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        if comm.rank == 0:
            loss(net, data(0, 0)).backward()
        else:
            engine.give_up()
        engine.step()
        return weights(net)


def test_who_gives_up_counts_as_zero() -> None:
    net = network()
    (loss(net, data(0, 0)) / 2).backward()
    sgd(net).step()
    for got in run("threads", 2, gives_up_mean):
        torch.testing.assert_close(got, weights(net))


def uneven(comm: CountedComm, make: Make) -> tuple[int, Tensor]:
    net = network()
    with Engine(net, adam(net), make(), comm) as engine:
        for k in engine.join(range(3 + 2 * comm.rank)):
            if k is None:
                engine.give_up()
            else:
                loss(net, data(comm.rank, k)).backward()
            if make is not qadam:
                clip_grad_norm_(net.parameters(), 0.1)
            engine.step()
        with engine.paused():
            return engine.steps, weights(net)


@pytest.mark.parametrize("kind", ["threads", "gloo"])
@pytest.mark.parametrize("make", SYNCHRONOUS)
def test_ranks_with_fewer_batches_take_part_to_the_end(make: Make, kind: str) -> None:
    results = run(kind, 2, uneven, make)
    assert [steps for steps, _ in results] == [5, 5]
    if make().consensus == 0:
        assert torch.equal(results[0][1], results[1][1])


def test_uneven_inputs_of_async() -> None:
    assert [steps for steps, _ in run("threads", 2, uneven, asynchronous)] == [3, 5]


def forgets_to_step(comm: CountedComm) -> None:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        for k in engine.join(range(3)):
            loss(net, data(comm.rank, k)).backward()


def test_join_wants_one_step_a_batch() -> None:
    with pytest.raises(RuntimeError, match=r"join: 0 steps .* call step\(\) once"):
        forgets_to_step(alone())


def normalised(comm: CountedComm, make: Make, steps: int, broadcast: bool) -> dict[str, Tensor]:
    net = fixed(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    with Engine(net, adam(net), make(), comm, broadcast_buffers=broadcast) as engine:
        for k in range(steps):
            loss(net, data(comm.rank, k) + 3 * comm.rank).backward()
            engine.synchronize()
            wait_for_a_round(engine)
            engine.optimize()
            engine.finish_step()
        with engine.paused():
            return {name: b.clone() for name, b in net.named_buffers()}


@pytest.mark.parametrize("make", [*GRADIENTS, slow_qadam])
def test_buffers_are_rank_0_s_where_replicas_are_equal(make: Make) -> None:
    first, second = run("threads", 2, normalised, make, 5, True)
    assert all(torch.equal(first[name], second[name]) for name in first)
    [single] = run("threads", 1, normalised, make, 1, True)
    [own, _] = run("threads", 2, normalised, make, 1, True)
    assert torch.equal(own["1.running_mean"], single["1.running_mean"]), "rank 0's"


@pytest.mark.parametrize("make", [*WEIGHTS, asynchronous])
def test_buffers_are_averaged_where_replicas_differ(make: Make) -> None:
    apart = run("threads", 2, normalised, make, 30, False)
    near = run("threads", 2, normalised, make, 30, True)

    def spread(buffers: list[dict[str, Tensor]]) -> float:
        return float((buffers[0]["1.running_mean"] - buffers[1]["1.running_mean"]).norm())

    assert spread(near) < spread(apart) / 2


def test_buffers_keep_to_themselves_on_demand() -> None:
    first, second = run("threads", 2, normalised, GradientAllReduce, 5, False)
    assert not torch.equal(first["1.running_mean"], second["1.running_mean"])
