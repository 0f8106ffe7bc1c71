"""Gradients are finished when `backward()` returns: clipping, accumulation, gradients set by hand, checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import ALL, GRADIENTS, Make, adam, alone, data, fixed, loss, network, qadam, sgd, train, weights
from tests.ranks import run


def clipped(comm: CountedComm, make: Make, by_engine: bool) -> tuple[list[float], Tensor]:
    net = network()
    norms = []
    with Engine(net, adam(net), make(), comm, bucket_size=0, max_grad_norm=0.1 if by_engine else None) as engine:
        for k in range(20):
            loss(net, data(comm.rank, k)).backward()
            if not by_engine:
                norms.append(float(clip_grad_norm_(net.parameters(), 0.1)))
            engine.step()
            if by_engine:
                assert engine.grad_norm is not None
                norms.append(float(engine.grad_norm))
        with engine.paused():
            return norms, weights(net)


@pytest.mark.parametrize("kind", ["threads", "gloo"])
@pytest.mark.parametrize("make", GRADIENTS)
def test_clipping_after_backward_sees_finished_gradients(make: Make, kind: str) -> None:
    """All ranks see the same norms, which are those of the mean gradient, and stay equal."""
    results = run(kind, 2, clipped, make, False)
    assert all(torch.equal(w, results[0][1]) for _, w in results), "replicas differ"
    assert results[0][0] == results[1][0]
    if make is GradientAllReduce:
        net = network()
        optimizer = adam(net)
        for k in range(20):
            optimizer.zero_grad()
            (sum(loss(net, data(rank, k)) for rank in range(2)) / 2).backward()  # type: ignore[union-attr]
            assert results[0][0][k] == pytest.approx(float(clip_grad_norm_(net.parameters(), 0.1)), rel=1e-4)
            optimizer.step()
        torch.testing.assert_close(results[0][1], weights(net), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", GRADIENTS)
def test_the_engine_clips_as_clip_grad_norm_does(make: Make) -> None:
    by_hand, by_engine = (run("threads", 2, clipped, make, way) for way in (False, True))
    for (norms, w), (own_norms, own) in zip(by_hand, by_engine, strict=True):
        assert norms == own_norms
        assert torch.equal(w, own)


@pytest.mark.parametrize("make", ALL[2:])
def test_the_engine_clips_a_rank_s_own_gradients_where_they_are_used(make: Make) -> None:
    for norms, w in run("threads", 2, clipped, make, True):
        assert len(norms) == 20 and all(norm > 0 for norm in norms)
        assert w.isfinite().all()


def momenta(comm: CountedComm, limit: float | None) -> list[float]:
    """Norm of QAdam's averaged momentum after every step."""
    net, seen = network(), []
    with Engine(net, adam(net), QAdam(warmup_steps=2), comm, max_grad_norm=limit) as engine:
        for k in range(6):
            loss(net, data(comm.rank, k)).backward()
            engine.step()
            seen.append(float(engine.optimizer.flat["0"][0].norm()))
    return seen


def test_clipping_bounds_the_momentum_of_qadam_s_second_stage() -> None:
    free, bound = (run("threads", 1, momenta, limit)[0] for limit in (None, 0.01))
    assert all(m <= 0.01 * 1.001 for m in bound)
    assert free[-1] > 10 * bound[-1]


def changed_too_late(comm: CountedComm) -> None:
    net = network()
    with Engine(net, adam(net), QAdam(warmup_steps=1), comm) as engine:
        train(engine, comm, 1)
        loss(net, data(0, 1)).backward()
        clip_grad_norm_(net.parameters(), 1e-3)
        engine.step()


def test_gradients_that_were_used_up_are_not_to_be_changed() -> None:
    with pytest.raises(RuntimeError, match=r"changed after backward.*max_grad_norm"):
        changed_too_late(alone())


def leave_out(comm: CountedComm, make: Make) -> tuple[Tensor, Tensor]:
    net = network()
    with Engine(net, adam(net), make(), comm) as engine:
        before = train(engine, comm, 5)
        loss(net, data(comm.rank, 5)).backward()
        net.zero_grad()
        engine.step()
        return before, weights(net)


@pytest.mark.parametrize("make", [*GRADIENTS, qadam])
def test_a_step_without_gradients_changes_nothing(make: Make) -> None:
    for before, after in run("threads", 2, leave_out, make):
        assert torch.equal(before, after)


def accumulated_elsewhere(comm: CountedComm) -> Tensor:
    """The last batch of a step leaves a branch out that earlier ones have used; gradients are read before `step`."""
    net = nn.ModuleDict({"a": nn.Linear(6, 1), "b": nn.Linear(6, 1)})
    for p in net.parameters():
        p.data.fill_(0.1)
    with Engine(net, sgd(net), GradientAllReduce(), comm, bucket_size=0) as engine:
        with engine.no_sync():
            loss(net["b"], data(comm.rank, 0)).backward()
        loss(net["a"], data(comm.rank, 1)).backward()
        found = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        engine.step()
        return found


def test_what_only_earlier_batches_of_a_step_have_used_is_averaged_too() -> None:
    first, second = run("threads", 2, accumulated_elsewhere)
    assert torch.equal(first, second)


def set_by_hand(comm: CountedComm) -> Tensor:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        grads = torch.autograd.grad(loss(net, data(comm.rank, 0)), list(net.parameters()))
        for p, grad in zip(net.parameters(), grads, strict=True):
            p.grad = grad
        engine.step()
        return weights(net)


def test_gradients_that_were_set_by_hand_are_averaged() -> None:
    expected = run("threads", 2, train_once)
    for got, wanted in zip(run("threads", 2, set_by_hand), expected, strict=True):
        assert torch.equal(got, wanted)


def train_once(comm: CountedComm) -> Tensor:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        return train(engine, comm, 1)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.parts = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        for part in self.parts:
            x = part(x) if self.reentrant is None else checkpoint(part, x, use_reentrant=self.reentrant)
        out: Tensor = self.head(x)
        return out


def recomputed(comm: CountedComm, reentrant: bool | None, find: bool) -> Tensor:
    net = fixed(Checkpointed(reentrant))
    with Engine(net, sgd(net), GradientAllReduce(), comm, bucket_size=0, find_unused_parameters=find) as engine:
        for k in range(3):
            with engine.no_sync():
                loss(net, data(comm.rank, 2 * k)).backward()
            loss(net, data(comm.rank, 2 * k + 1)).backward()
            clip_grad_norm_(net.parameters(), 0.5)
            engine.step()
        return weights(net)


@pytest.mark.parametrize("find", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, find: bool) -> None:
    expected = run("threads", 2, recomputed, None, False)
    for got, wanted in zip(run("threads", 2, recomputed, reentrant, find), expected, strict=True):
        assert torch.equal(got, wanted)
