"""Hooks, scaling, checkpointing and penalties: what users do to gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.loss_scale import LossScale
from tests.habits import WEIGHTS, Make, alone, data, loss, network, sgd, train, weights
from tests.ranks import run


def hooked(comm: CountedComm, when: str) -> list[Tensor]:
    net = network()

    def clamp(p: Tensor) -> None:
        p.grad.clamp_(-0.01, 0.01)

    handles = [p.register_post_accumulate_grad_hook(clamp) for p in net.parameters() if when == "before"]
    seen = []
    with Engine(net, sgd(net), GradientAllReduce(), comm, bucket_size=0) as engine:
        handles += [p.register_post_accumulate_grad_hook(clamp) for p in net.parameters() if when == "after"]
        for k in range(3):
            loss(net, data(comm.rank, k)).backward()
            seen.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
            engine.step()
    return seen


def test_hooks_that_users_put_on_parameters_run_before_communication() -> None:
    before, after = run("threads", 2, hooked, "before"), run("threads", 2, hooked, "after")
    for early, late_ in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(early, late_, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*after, strict=True))


def scaled_and_clipped(comm: CountedComm, make: Make) -> float:
    net = network()
    with Engine(net, sgd(net, 1.0), make(), comm) as engine:
        engine.scale = LossScale(torch.device("cpu"), 2.0**16)
        before = weights(net)
        engine.scale.scaled(loss(net, data(0, 0))).backward()
        clip_grad_norm_(net.parameters(), 0.5)
        engine.step()
        with engine.paused():
            return float((weights(net) - before).norm())


@pytest.mark.parametrize("make", [GradientAllReduce, *WEIGHTS])
def test_gradients_are_unscaled_when_backward_returns(make: Make) -> None:
    """Both ranks have the same data: the step is as long as the clipped gradient."""
    for moved in run("threads", 2, scaled_and_clipped, make):
        assert moved == pytest.approx(0.5, rel=0.02)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.b, checkpoint(self.a, x.requires_grad_(), use_reentrant=True), use_reentrant=True)
        return out


def test_unused_parameters_under_reentrant_checkpointing_are_refused() -> None:
    net = Reentrant()
    with (
        Engine(net, sgd(net), GradientAllReduce(), alone(), find_unused_parameters=True) as engine,
        pytest.raises(RuntimeError, match="use_reentrant=False"),
    ):
        train(engine, engine.comm, 1)


def penalised(net: nn.Module, no_sync: Any, x: Tensor) -> None:
    with no_sync():
        loss(net, x).backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in net.parameters())
    penalty.backward()


def gradient_penalty(comm: CountedComm, make: Make) -> Tensor:
    net = network()
    with Engine(net, sgd(net), make(), comm) as engine:
        penalised(net, engine.no_sync, data(0, 0))
        return torch.cat([p.grad.flatten() for p in net.parameters()])


@pytest.mark.parametrize("make", [GradientAllReduce, LowPrecisionDecentralized])
def test_gradients_of_gradients_under_no_sync(make: Make) -> None:
    net = network()
    penalised(net, torch.enable_grad, data(0, 0))
    for got in run("threads", 2, gradient_penalty, make):
        torch.testing.assert_close(got, torch.cat([p.grad.flatten() for p in net.parameters()]))
    net = network()
    with (
        Engine(net, sgd(net), GradientAllReduce(), alone()),
        pytest.raises(RuntimeError, match=r"create_graph=True.*no_sync\(\)"),
    ):
        loss(net, data(0, 0)).backward(create_graph=True)


def test_an_optimizer_in_the_backward_pass_is_refused() -> None:
    net = network()
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    with (
        Engine(net, sgd(net), GradientAllReduce(), alone()) as engine,
        pytest.raises(RuntimeError, match="gradient is gone already"),
    ):
        train(engine, engine.comm, 1)
