"""Engines that are closed, evaluated, left by their peers, or resumed."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from algorithms.base import When
from algorithms.bytegrad import ByteGrad
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CommError, CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine
from tasks.quadratic import Quadratic
from tests.ranks import outcomes, run
from tests.unit.test_engine import Net, Recorder, make


def test_weights_outside_gradient_algorithms_need_no_flat_gradients() -> None:
    net = Net()
    engine = Engine(net, torch.optim.SGD(net.parameters(), lr=1.0), Recorder(When.STEP), ThreadComm.world(1)[0])
    assert all(len(bucket.grad) == 0 for bucket in engine.buckets)
    engine.close()


def test_close_leaves_no_hook_behind() -> None:
    net = Net()
    engine = Engine(net, torch.optim.SGD(net.parameters(), lr=1.0), GradientAllReduce(), ThreadComm.world(1)[0])
    engine.close()
    assert not net._forward_pre_hooks
    before = engine.buckets[0].grad.zero_().clone()  # no NaN of fresh memory
    net(torch.ones(1, 4), True).sum().backward()
    assert torch.equal(engine.buckets[0].grad, before), "gradients go into buckets that nobody needs"


def test_an_evaluation_between_steps_changes_nothing() -> None:
    net, engine = make(ThreadComm.world(1)[0])
    with engine:
        net(torch.ones(1, 4), True).sum().backward()
        engine.step()
        with torch.no_grad():
            net.eval()(torch.ones(1, 4), True)
        net.train()
        net(torch.ones(1, 4), True).sum().backward()
        engine.step()
        assert engine.steps == 2


def lonely(comm: CountedComm, delay: float) -> float:
    net, engine = make(comm)
    if comm.rank == 1:
        if delay:
            time.sleep(delay)
        raise ValueError("died before its backward pass")
    began = time.monotonic()
    with pytest.raises(CommError):
        net(torch.ones(1, 4), True).sum().backward()
    with pytest.raises(CommError):
        engine.step()
    engine.close()
    return time.monotonic() - began


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_a_dead_peer_is_an_exception_in_the_training_thread(kind: str) -> None:
    waited, death = outcomes(kind, 2, lonely, 0.0, timeout=20)
    assert isinstance(death, ValueError)
    assert waited < 20


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_a_silent_peer_is_an_exception_after_the_time_out(kind: str) -> None:
    waited, _ = outcomes(kind, 2, lonely, 8.0, timeout=2)
    assert 1 < waited < 8


def test_sparse_gradients_are_refused() -> None:
    net = nn.Embedding(5, 3, sparse=True)
    engine = Engine(net, torch.optim.SGD(net.parameters(), lr=1.0), GradientAllReduce(), ThreadComm.world(1)[0])
    with pytest.raises(ValueError, match="weight: sparse gradients"):
        net(torch.tensor([1])).sum().backward()
    engine.close()


def resumed(comm: CountedComm, stop: int | None) -> tuple[Tensor, int]:
    task = Quadratic(lr=0.1)
    model = task.model()
    batches = task.batches(comm.rank, comm.size, seed=0)
    engine = Engine(model, task.optimizer(model), ByteGrad(), comm)
    for k in range(6):
        if k == stop:
            weights, state = model.state_dict(), engine.state_dict()
            engine.close()
            model = task.model()
            model.load_state_dict(weights)
            engine = Engine(model, task.optimizer(model), ByteGrad(), comm)
            engine.load_state_dict(state)
        task.loss(model, next(batches)).backward()
        engine.step()
    engine.close()
    return model().detach(), engine.steps


def test_resuming_is_bit_equal() -> None:
    for (straight, steps), (again, steps_again) in zip(
        run("threads", 2, resumed, None), run("threads", 2, resumed, 3), strict=True
    ):
        assert torch.equal(straight, again)
        assert steps == steps_again == 6
