"""Weights are averaged however a model is called, and whatever is done to it behind the engine's back is noticed."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from algorithms.async_model_average import AsyncModelAverage
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import (
    GRADIENTS,
    WEIGHTS,
    Make,
    adam,
    alone,
    asynchronous,
    data,
    loss,
    network,
    qadam,
    sgd,
    train,
    weights,
)
from tests.ranks import run


def in_some_way(comm: CountedComm, make: Make, way: str) -> Tensor:
    net = network()
    if way == "eval":
        net.eval()
    with Engine(net, sgd(net), make(), comm) as engine:
        for k in range(6):
            x = data(comm.rank, k)
            target = x.sum(1, keepdim=True)
            if way == "forward":
                out = net.forward(x)
            elif way == "submodules":
                out = net[2](net[1](net[0](x)))
            elif way == "no forward":
                for p in net.parameters():
                    p.grad = torch.zeros_like(p)
                engine.step()
                continue
            else:
                out = net(x)
            (out - target).square().mean().backward()
            engine.step()
        with engine.paused():
            return weights(net)


@pytest.mark.parametrize("way", ["eval", "forward", "submodules"])
@pytest.mark.parametrize("make", WEIGHTS)
def test_weights_are_averaged_however_the_model_is_called(make: Make, way: str) -> None:
    expected = run("threads", 2, in_some_way, make, "train")
    for got, wanted in zip(run("threads", 2, in_some_way, make, way), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("make", WEIGHTS)
def test_a_step_without_a_forward_pass_keeps_the_weights(make: Make) -> None:
    for got in run("threads", 2, in_some_way, make, "no forward"):
        torch.testing.assert_close(got, weights(network()))


def evaluated_on_the_way(comm: CountedComm) -> float:
    """Averaging rounds may not change weights between a forward pass that nobody hears of and its backward pass."""
    net = network()
    moved = 0.0
    with Engine(net, sgd(net), AsyncModelAverage(interval_ms=0.1), comm) as engine:
        for k in range(60):
            out = net[2](net[1](net[0](data(comm.rank, k))))
            before = weights(net)
            time.sleep(0.003)
            moved = max(moved, float((weights(net) - before).abs().max()))
            out.square().mean().backward()
            engine.step()
    return moved


def test_averaging_rounds_wait_for_passes_that_no_hook_announced() -> None:
    assert run("threads", 2, evaluated_on_the_way) == [0.0, 0.0]


def disturbed(comm: CountedComm) -> None:
    net = network()
    with Engine(net, sgd(net), Decentralized(), comm) as engine:
        train(engine, comm, 2)
        loss(net, data(comm.rank, 2))
        with torch.no_grad():
            net[0].weight.mul_(0.5)
        engine.step()


def test_weights_changed_while_they_are_averaged_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="weights were changed between forward and step"):
        run("threads", 2, disturbed)


def rolled_back(comm: CountedComm) -> tuple[Tensor, Tensor]:
    """A forward pass, then the weights of before: `load_state_dict` throws away what is under way."""
    net = network()
    with Engine(net, sgd(net), Decentralized(), comm) as engine:
        expected = train(engine, comm, 2).clone()
        saved, state = copy.deepcopy(net.state_dict()), copy.deepcopy(engine.state_dict())
        train(engine, comm, 3, first=2)
        loss(net, data(comm.rank, 5))
        net.load_state_dict(saved)
        engine.load_state_dict(state)
        return expected, weights(net)


def test_a_roll_back_throws_away_what_is_under_way() -> None:
    for expected, got in run("threads", 2, rolled_back):
        assert torch.equal(expected, got)


def replaced(comm: CountedComm, make: Make, how: str) -> Tensor:
    net = network()
    with Engine(net, sgd(net), make(), comm) as engine:
        for k in range(6):
            if k == 3:
                if how == "vector":
                    vector_to_parameters(parameters_to_vector(net.parameters()), net.parameters())
                elif how == "data":
                    for p in net.parameters():
                        p.data = p.data.clone()
                elif how == "to":
                    net.double().float()
            train(engine, comm, 1, first=k)
        with engine.paused():
            return weights(net)


@pytest.mark.parametrize("how", ["vector", "data", "to"])
@pytest.mark.parametrize("make", [*GRADIENTS, *WEIGHTS])
def test_replaced_data_goes_back_into_its_bucket(make: Make, how: str) -> None:
    expected = run("threads", 2, replaced, make, "nothing")
    for got, wanted in zip(run("threads", 2, replaced, make, how), expected, strict=True):
        assert torch.equal(got, wanted)


class Reassigning(torch.optim.SGD):
    """An optimizer of somebody's own, which assigns `p.data`."""

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = p.data - 0.1 * p.grad


def reassigned(comm: CountedComm, make: Make, kind: type[torch.optim.SGD]) -> Tensor:
    net = network()
    with Engine(net, kind(net.parameters(), lr=0.1), make(), comm) as engine:
        return train(engine, comm, 4)


@pytest.mark.parametrize("make", [*GRADIENTS, *WEIGHTS])
def test_an_optimizer_may_assign_data(make: Make) -> None:
    expected = run("threads", 2, reassigned, make, torch.optim.SGD)
    for got, wanted in zip(run("threads", 2, reassigned, make, Reassigning), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_changes_that_take_new_buckets_are_named() -> None:
    def changed(change: Callable[[nn.Module], object]) -> None:
        net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 1))
        net[0].bias.requires_grad_(False)
        with Engine(net, sgd(net), GradientAllReduce(), alone()) as engine:
            change(net)
            net(torch.ones(1, 2, 3, 3)).sum().backward()
            engine.step()

    def assign(net: nn.Module) -> None:
        net.load_state_dict({key: value.clone() for key, value in net.state_dict().items()}, assign=True)

    for change, message in (
        (lambda net: net[0].bias.requires_grad_(True), r"0\.bias: it requires a gradient"),
        (lambda net: net.to(memory_format=torch.channels_last), r"0\.weight: its memory format"),
        (lambda net: net.half(), r"2\.bias: its dtype"),
        (assign, r"0\.weight: another Parameter"),
        (lambda net: net.append(nn.Linear(1, 1)), r"3\.weight: this parameter is new"),
        (lambda net: nn.utils.parametrizations.weight_norm(net[2]), r"2\.parametrizations.*: this parameter is new"),
    ):
        with pytest.raises(RuntimeError, match=message + r".*engine\.rebuild\(\)"):
            changed(change)


def thawed(comm: CountedComm, make: Make, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train with a frozen layer, thaw it, go on; the frozen layer's weight before and after, and all weights."""
    net = network()
    net[0].requires_grad_(False)
    with Engine(net, adam(net), make(), comm, bucket_size=size) as engine:
        train(engine, comm, 5)
        before = net[0].weight.detach().clone()
        net[0].requires_grad_(True)
        engine.rebuild()
        train(engine, comm, 5, first=5)
        with engine.paused():
            return before, net[0].weight.detach().clone(), weights(net)


def patient_qadam() -> QAdam:
    return QAdam(warmup_steps=8)


@pytest.mark.parametrize("size", [0, 10**6])
@pytest.mark.parametrize("make", [*GRADIENTS, *WEIGHTS, patient_qadam, asynchronous])
def test_thawing(make: Make, size: int) -> None:
    results = run("threads", 2, thawed, make, size)
    for before, after, _ in results:
        assert not torch.equal(before, after)
    spread = float((results[0][2] - results[1][2]).norm() / results[0][2].norm())
    algorithm = make()
    assert spread <= 2 * algorithm.consensus, "the thawed layer is not averaged"


def test_what_thaws_after_the_warm_up_of_qadam_has_no_second_moment() -> None:
    with pytest.raises(RuntimeError, match=r"shape \(5, 6\).*QAdam's warm-up of 3 steps.*engine\.restart\(\)"):
        run("threads", 2, thawed, qadam, 0)


def rebuilt(comm: CountedComm, make: Make, at: int | None) -> Tensor:
    net = network()
    with Engine(net, adam(net), make(), comm) as engine:
        for k in range(8):
            if k == at:
                engine.rebuild()
            train(engine, comm, 1, first=k)
        return weights(net)


@pytest.mark.parametrize("make", [*GRADIENTS, *WEIGHTS])
def test_rebuilding_alone_changes_nothing(make: Make) -> None:
    for got, wanted in zip(run("threads", 2, rebuilt, make, 4), run("threads", 2, rebuilt, make, None), strict=True):
        assert torch.equal(got, wanted)


def test_rebuilding_keeps_the_errors_and_moments_of_qadam() -> None:
    make = lambda: QAdam(warmup_steps=2)  # noqa: E731
    for got, wanted in zip(run("threads", 2, rebuilt, make, 4), run("threads", 2, rebuilt, make, None), strict=True):
        assert torch.equal(got, wanted)


def with_all() -> Decentralized:
    return Decentralized(peers="all")


@pytest.mark.parametrize("make", [*GRADIENTS, with_all, LowPrecisionDecentralized, qadam, asynchronous])
def test_copies_and_files_of_a_model_know_no_engine(make: Make) -> None:
    net = network()
    with Engine(net, adam(net), make(), alone()) as engine:
        train(engine, engine.comm, 2)
        with engine.paused():
            averaged = AveragedModel(net)
            file = io.BytesIO()
            torch.save(net, file)
            file.seek(0)
            copies = [copy.deepcopy(net), torch.load(file, weights_only=False), pickle.loads(pickle.dumps(net))]
            for other in [*copies, averaged.module]:
                assert torch.equal(weights(other), weights(net))
                loss(other, data(0, 0)).backward()  # a training pass of the copy
            averaged.update_parameters(net)
        assert engine.steps == 2
        train(engine, engine.comm, 1)


def test_a_saved_model_opens_without_this_package(tmp_path: Any) -> None:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), alone()):
        torch.save(net, tmp_path / "model.pt")
    script = (
        "import sys, torch; net = torch.load('model.pt', weights_only=False); print(net(torch.ones(1, 6)).shape); "
        "assert not [m for m in sys.modules if m.startswith(('bagua_bench', 'algorithms'))]"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
