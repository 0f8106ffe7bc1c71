"""Habits under which an engine once trained wrong without a word, hung, or answered with a riddle."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections import Counter, namedtuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from algorithms.async_model_average import AsyncModelAverage
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.training.engine import Engine
from bagua_bench.training.loss_scale import LossScale
from tests.habits import ALL, GRADIENTS, WEIGHTS, Make, adam, alone, data, fixed, loss, network, sgd, train, weights
from tests.ranks import run

Extra = namedtuple("Extra", "epoch best")


# -- state ----------------------------------------------------------------------------------------------------


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


# -- parameters and buffers that come ---------------------------------------------------------------------------


def grown(net: nn.Sequential, optimizer: torch.optim.Optimizer, how: str) -> None:
    if how == "another layer":
        net[2] = nn.Linear(5, 1)
        optimizer.add_param_group({"params": list(net[2].parameters())})
    elif how == "a bias":
        net[2].bias = nn.Parameter(torch.zeros(1))
        optimizer.add_param_group({"params": [net[2].bias]})
    else:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize("how", ["another layer", "a bias", "a stranger"])
@pytest.mark.parametrize("make", [GradientAllReduce, LowPrecisionDecentralized])
def test_parameters_that_come_are_noticed(make: Make, how: str) -> None:
    net = network()
    if how == "a bias":
        net[2] = nn.Linear(5, 1, bias=False)
    optimizer = sgd(net)
    with Engine(net, optimizer, make(), alone(), find_unused_parameters=True) as engine:
        train(engine, engine.comm, 1)
        grown(net, optimizer, how)
        with pytest.raises((RuntimeError, ValueError), match=r"engine\.rebuild\(\)|not in the model"):
            train(engine, engine.comm, 1, first=1)


class Late(nn.Module):
    """Makes what it needs in its first forward pass: a module without parameters, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "activation"):
            self.activation = nn.Tanh()
            self.register_buffer("seen", torch.zeros(1))
        self.seen += x.mean().detach()
        out: Tensor = self.activation(self.linear(x))
        return out


def late(comm: CountedComm) -> Tensor:
    net = fixed(Late())
    with Engine(net, sgd(net), GradientAllReduce(), comm) as engine:
        train(engine, comm, 3)
        return net.seen.clone()


def test_modules_and_buffers_may_be_made_in_the_first_forward_pass() -> None:
    first, second = run("threads", 2, late)
    assert torch.equal(first, second)


class Growing(nn.Module):
    """A cache that grows with the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("cache", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = torch.zeros(len(self.cache) + 1)
        out: Tensor = self.linear(x)
        return out


def test_buffers_that_grow_are_named() -> None:
    net = Growing()
    with (
        Engine(net, sgd(net), GradientAllReduce(), alone()) as engine,
        pytest.raises(RuntimeError, match=r"cache: this buffer was \(1,\).*broadcast_buffers=False"),
    ):
        train(engine, engine.comm, 1)
    net = Growing()
    with Engine(net, sgd(net), GradientAllReduce(), alone(), broadcast_buffers=False) as engine:
        train(engine, engine.comm, 2)


class Masked(nn.Module):
    """Buffers that hold what cannot be averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), -torch.inf), 1))
        self.register_buffer("least", torch.full((3,), torch.finfo(torch.float32).min))
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.mean().detach()
        out: Tensor = self.linear(torch.softmax(self.mask, -1) @ x.T[:6, :6] + x[:6])
        return out


def masked(comm: CountedComm, make: Make) -> dict[str, Tensor]:
    net = fixed(Masked())
    with Engine(net, adam(net), make(), comm) as engine:
        for k in range(10):
            net(data(comm.rank, k)).square().mean().backward()
            engine.step()
            time.sleep(0.002)
        with engine.paused():
            return {name: b.clone() for name, b in net.named_buffers()}


@pytest.mark.parametrize("make", ALL)
def test_masks_and_odd_buffers_stay_as_they_are(make: Make) -> None:
    for found in run("threads", 2, masked, make):
        for name in ("mask", "least", "wide"):
            assert torch.equal(found[name], dict(Masked().named_buffers())[name]), name
        assert found["seen"].isfinite().all()


def counted_in_backward(comm: CountedComm, make: Make) -> list[float]:
    net = network()
    net.register_buffer("passes", torch.zeros(1))

    def count(*_: object) -> None:
        net.passes.add_(1)

    net[0].register_full_backward_hook(count)
    with Engine(net, adam(net), make(), comm) as engine:
        train(engine, comm, 8)
        return net.passes.tolist()


@pytest.mark.parametrize("make", GRADIENTS)
def test_buffers_that_backward_hooks_write_count_on(make: Make) -> None:
    assert run("threads", 2, counted_in_backward, make)[0] == [8.0]


# -- gradients ------------------------------------------------------------------------------------------------


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


# -- data for one pass, engines side by side, engines that have ended ---------------------------------------------


def perturbed(comm: CountedComm, make: Make) -> Tensor:
    """Gradients at other weights than those that are trained."""
    net = network()
    with Engine(net, sgd(net), make(), comm) as engine:
        for k in range(5):
            kept = [p.data for p in net.parameters()]
            for p in net.parameters():
                p.data = p.data + 0.1
            loss(net, data(comm.rank, k)).backward()
            for p, old in zip(net.parameters(), kept, strict=True):
                p.data = old
            engine.step()
        with engine.paused():
            return weights(net)


def perturbed_by_hand() -> Tensor:
    net = network()
    for k in range(5):
        moved = copy.deepcopy(net)
        for p in moved.parameters():
            p.data += 0.1
        (sum(loss(moved, data(rank, k)) for rank in range(2)) / 2).backward()
        for p, q in zip(net.parameters(), moved.parameters(), strict=True):
            p.data -= 0.1 * q.grad
    return weights(net)


def test_data_that_is_replaced_for_one_pass_only() -> None:
    for got in run("threads", 2, perturbed, GradientAllReduce):
        torch.testing.assert_close(got, perturbed_by_hand())
    pairs = torch.stack(run("threads", 2, perturbed, Decentralized)).mean(0)
    assert float((pairs - perturbed_by_hand()).norm()) < 0.2 * float((perturbed_by_hand() - weights(network())).norm())


def test_two_engines_do_not_share_parameters() -> None:
    trunk, heads = nn.Linear(6, 5), [nn.Linear(5, 1), nn.Linear(5, 2)]
    actor, critic = (nn.Sequential(trunk, head) for head in heads)
    engine = Engine(actor, sgd(actor), GradientAllReduce(), alone())
    with pytest.raises(ValueError, match=r"0\.weight: another Engine trains it"):
        Engine(critic, sgd(critic), GradientAllReduce(), alone())
    with pytest.raises(ValueError, match="another Engine trains it"):
        Engine(actor, sgd(actor), GradientAllReduce(), alone())
    engine.close()
    Engine(critic, sgd(critic), GradientAllReduce(), alone()).close()


@pytest.mark.parametrize("make", ALL[:1] + ALL[3:])
def test_an_engine_that_was_closed_says_so(make: Make) -> None:
    net = network()
    with Engine(net, adam(net), make(), alone()) as engine:
        train(engine, engine.comm, 1)
    threads = threading.active_count()
    for use in (engine.step, engine.restart, engine.rebuild, engine.give_up, lambda: engine.paused().__enter__()):
        with pytest.raises(RuntimeError, match="the engine is closed"):
            use()
    loss(net, data(0, 0)).backward()
    assert threading.active_count() == threads


def advised(comm: CountedComm, make: Make) -> Tensor:
    """An error says to call `rebuild()`; it is called right then."""
    net = network()
    net[0].requires_grad_(False)
    with Engine(net, sgd(net), make(), comm) as engine:
        net(data(comm.rank, 0))  # a training forward, to see a shape
        net[0].requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"engine\.rebuild\(\)"):
            train(engine, comm, 1)
        net.zero_grad()
        engine.rebuild()
        train(engine, comm, 3)
        with engine.paused():
            return weights(net)


@pytest.mark.parametrize("make", [GradientAllReduce, Decentralized, LowPrecisionDecentralized])
def test_the_advice_to_rebuild_can_be_followed(make: Make) -> None:
    for w in run("threads", 2, advised, make):
        assert not torch.equal(w[:35], weights(network())[:35])


def test_a_pause_within_a_pass_is_refused_where_averages_would_change_its_weights() -> None:
    net = network()
    with Engine(net, sgd(net), AsyncModelAverage(interval_ms=1), alone()) as engine:
        value = loss(net, data(0, 0))
        with pytest.raises(RuntimeError, match="between a training forward and step"), engine.paused():
            pass
        value.backward()
        engine.step()


def limits(comm: CountedComm) -> None:
    Engine(net := network(), sgd(net), GradientAllReduce(), comm, max_grad_norm=1.0 + comm.rank)


def test_ranks_with_different_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_grad_norm=1\.0, rank 1 has max_grad_norm=2\.0"):
        run("threads", 2, limits)


def test_what_is_no_optimizer_or_no_algorithm_is_refused() -> None:
    net = network()
    for optimizer in (None, [], net.parameters(), LambdaLR(sgd(net), lambda k: 1.0)):
        with pytest.raises(ValueError, match=r"expected a torch\.optim\.Optimizer"):
            Engine(net, optimizer, GradientAllReduce(), alone())
    with pytest.raises(ValueError, match="expected an algorithm"):
        Engine(net, sgd(net), GradientAllReduce, alone())


def engines_of_the_default_group(comm: CountedComm) -> tuple[int, float]:
    """Threads that 5 engines leave behind, and the time-out of their groups."""
    net = network()
    before = threads = 0
    for number in range(6):
        with Engine(net, sgd(net), GradientAllReduce()) as engine:
            train(engine, comm, 1)
            assert isinstance(engine.comm, TorchComm)
            limit = engine.comm.group._get_backend(torch.device("cpu")).options._timeout
        threads = len(list(Path("/proc/self/task").iterdir()))
        before = threads if number == 0 else before
    dist.destroy_process_group()
    return threads - before, limit / timedelta(seconds=1)


def test_engines_give_their_groups_back() -> None:
    for threads, limit in run("gloo", 2, engines_of_the_default_group):
        assert threads <= 2
        assert limit == dist.distributed_c10d.default_pg_timeout / timedelta(seconds=1), "the default group's"
