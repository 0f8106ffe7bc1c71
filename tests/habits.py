"""A small network, its data and every algorithm, for tests of what people do to a model under an engine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from algorithms.async_model_average import AsyncModelAverage
from algorithms.base import Algorithm
from algorithms.bytegrad import ByteGrad
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine

Make = Callable[[], Algorithm]


def qadam() -> QAdam:
    return QAdam(warmup_steps=3)


def asynchronous() -> AsyncModelAverage:
    return AsyncModelAverage(interval_ms=1)


GRADIENTS: list[Make] = [GradientAllReduce, ByteGrad]
WEIGHTS: list[Make] = [Decentralized, LowPrecisionDecentralized]
SYNCHRONOUS: list[Make] = [*GRADIENTS, *WEIGHTS, qadam]
ALL: list[Make] = [*SYNCHRONOUS, asynchronous]


def data(rank: int, step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def fixed(net: nn.Module) -> nn.Module:
    """The same weights every time: ranks that are threads share torch's generator."""
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 3
    return net


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    fixed(net)
    return net


def loss(net: nn.Module, x: Tensor) -> Tensor:
    return (net(x) - x.sum(1, keepdim=True)).square().mean()


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def sgd(net: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr)


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def train(engine: Engine, comm: CountedComm, steps: int, first: int = 0) -> Tensor:
    for k in range(first, first + steps):
        loss(engine.model, data(comm.rank, k)).backward()
        engine.step()
    return weights(engine.model)


def alone() -> CountedComm:
    return ThreadComm.world(1)[0]
