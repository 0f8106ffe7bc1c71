"""Parameters, modules and buffers that come while training, or that hooks and masks write."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import ALL, GRADIENTS, Make, adam, alone, data, fixed, network, sgd, train
from tests.ranks import run


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
