"""The engine: equality with plain single-process training, and the moments of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.base import Algorithm, Bucket, Comm, Turn, When
from algorithms.bytegrad import ByteGrad
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine
from tasks.quadratic import Quadratic
from tasks.vgg16 import VGG16
from tests.ranks import run

WORLDS = [("threads", n) for n in (1, 2, 3, 5)] + [("gloo", 2), ("gloo", 4)]


def quadratic(
    comm: CountedComm, algorithm: Callable[[], Algorithm], dtype: str, steps: int, options: dict[str, Any]
) -> Tensor:
    task = Quadratic(dtype=dtype, lr=0.5)  # type: ignore[arg-type]
    model = task.model()
    with Engine(model, task.optimizer(model), algorithm(), comm, **options) as engine:
        for batch in islice(task.batches(comm.rank, comm.size, seed=0), steps):
            task.loss(model, batch).backward()
            engine.step()
    return model().detach()


@pytest.mark.parametrize(("kind", "size"), WORLDS)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"bucket_size": 0}], ids=str)
def test_gradient_allreduce_is_gradient_descent_on_the_mean(kind: str, size: int, options: dict[str, Any]) -> None:
    """Against x <- x - lr mean(H_r (x - c_r)), written out, in float64."""
    problems = [Quadratic(dtype="float64").problem(rank, 0) for rank in range(size)]
    x = torch.zeros(32, dtype=torch.float64)
    for _ in range(10):
        x = x - 0.5 * torch.stack([h @ (x - c) for h, c in problems]).mean(0)
    for got in run(kind, size, quadratic, GradientAllReduce, "float64", 10, options):
        torch.testing.assert_close(got, x, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("kind", "size", "per_server"), [("threads", 4, 2), ("threads", 2, 2), ("gloo", 4, 2)])
def test_hierarchical_gradient_allreduce(kind: str, size: int, per_server: int) -> None:
    flat = run("threads", size, quadratic, GradientAllReduce, "float64", 10, {})
    tree = run(
        kind, size, quadratic, partial(GradientAllReduce, hierarchical=True), "float64", 10, {}, per_server=per_server
    )
    for got in tree:
        torch.testing.assert_close(got, flat[0], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("kind", "size"), WORLDS)
def test_bytegrad_reaches_the_optimum_within_its_quantisation(kind: str, size: int) -> None:
    results = run(kind, size, quadratic, ByteGrad, "float32", 60, {})
    assert all(torch.equal(x, results[0]) for x in results), "replicas differ"
    task = Quadratic()
    optimum = task.optimum(size, 0)
    # At rest the mean gradient is within its two quantisations, each half a level of the gradients' range.
    gradients = torch.stack([h.double() @ (optimum - c.double()) for h, c in (task.problem(r, 0) for r in range(size))])
    level = float(gradients.max() - gradients.min()) / 255
    assert (results[0].double() - optimum).norm() <= 2 * level * 32**0.5 / 0.5 + 1e-5


def vgg_step(comm: CountedComm, start: dict[str, Tensor], steps: int) -> Tensor:
    task = VGG16("tiny", batch=8, image=32, dropout=0.0, lr=0.003)
    model = task.model()
    model.load_state_dict(start)
    with Engine(model, task.optimizer(model), GradientAllReduce(), comm, bucket_size=10_000) as engine:
        for batch in islice(task.batches(comm.rank, comm.size, seed=0), steps):
            task.loss(model, batch).backward()
            engine.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("kind", "size"), [("threads", 2), ("gloo", 2)])
def test_vgg16_equals_sgd_on_the_concatenated_batch(kind: str, size: int) -> None:
    task = VGG16("tiny", batch=8, image=32, dropout=0.0, lr=0.003)
    torch.manual_seed(0)
    model = task.model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = task.optimizer(model)
    parts = [islice(task.batches(rank, size, seed=0), 3) for rank in range(size)]
    for batches in zip(*parts, strict=True):
        joint = tuple(torch.cat(tensors) for tensors in zip(*batches, strict=True))
        optimizer.zero_grad()
        task.loss(model, joint).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    for got in run(kind, size, vgg_step, start, 3):
        assert (got - expected).norm() / expected.norm() < 1e-6


class Net(nn.Module):
    """Two linear layers, one of them used only on demand, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(1))  # registered on the root module itself

    def forward(self, x: Tensor, both: bool) -> Tensor:
        out = self.a(x) * self.scale
        return out + self.b(x) if both else out


def make(comm: CountedComm, **options: Any) -> tuple[Net, Engine]:
    net = Net()
    net.seen += comm.rank
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.linspace(-1, 1 + i + comm.rank, p.numel()).view_as(p))
    return net, Engine(net, torch.optim.SGD(net.parameters(), lr=0.01), GradientAllReduce(), comm, **options)


def start_values(comm: CountedComm) -> dict[str, Tensor]:
    net, engine = make(comm)
    engine.close()
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize(("kind", "size"), [("threads", 3), ("gloo", 2)])
def test_parameters_and_buffers_start_as_on_rank_0(kind: str, size: int) -> None:
    first, *others = run(kind, size, start_values)
    assert torch.equal(first["seen"], torch.zeros(3))
    assert torch.equal(first["scale"], torch.tensor([-1.0]))
    for other in others:
        assert all(torch.equal(other[name], first[name]) for name in first)


def gradients(comm: CountedComm, use: list[bool], find: bool) -> dict[str, Tensor | None]:
    net, engine = make(comm, find_unused_parameters=find)
    with engine:
        net(torch.full((2, 4), comm.rank + 1.0), use[comm.rank]).sum().backward()
        engine.synchronize()  # only needed for the error: gradients are there when backward() returns
        return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_unused_parameters(kind: str) -> None:
    with pytest.raises(RuntimeError, match=r"2 parameters got no gradient in this step: b\.bias, b\.weight"):
        run(kind, 2, gradients, [False, False], False, timeout=5)
    for grads in run(kind, 2, gradients, [False, True], True):  # used by rank 1 alone
        assert grads["b.weight"] is not None
        torch.testing.assert_close(grads["b.weight"], torch.full((3, 4), 2.0))  # (0 + 2 samples of 2) / 2
        torch.testing.assert_close(grads["a.weight"], torch.full((3, 4), -3.0))  # -1 x (2 of 1 + 2 of 2) / 2
    for grads in run(kind, 2, gradients, [False, False], True):
        assert grads["b.weight"] is None, "a parameter that no rank used has no gradient"


def accumulated(comm: CountedComm, separately: bool) -> Tensor:
    net, engine = make(comm)
    inputs = [torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * comm.rank + i)) for i in range(3)]
    with engine:
        for _ in range(2):
            if separately:
                with engine.no_sync():
                    for x in inputs[:2]:
                        net(x, True).square().sum().backward()
                net(inputs[2], True).square().sum().backward()
            else:
                net(torch.cat(inputs), True).square().sum().backward()
            engine.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize(("kind", "size"), [("threads", 2), ("gloo", 2)])
def test_gradient_accumulation(kind: str, size: int) -> None:
    torch.testing.assert_close(run(kind, size, accumulated, True), run(kind, size, accumulated, False))


def test_two_backward_passes_need_no_sync() -> None:
    net, engine = make(ThreadComm.world(1)[0])
    x = torch.ones(1, 4)
    net(x, True).sum().backward()
    with pytest.raises(RuntimeError, match=r"no_sync\(\)"):
        net(x, True).sum().backward()
    engine.close()


def reused(comm: CountedComm) -> Tensor:
    layer = nn.Linear(4, 4, bias=False)
    nn.init.eye_(layer.weight)
    tied = nn.Linear(4, 4, bias=False)
    tied.weight = layer.weight
    model = nn.Sequential(layer, nn.Tanh(), tied, layer)  # used three times under two names
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), GradientAllReduce(), comm)
    with engine:
        model(torch.full((1, 4), comm.rank + 0.5)).sum().backward()
        engine.step()
    return layer.weight.detach().clone()


def test_module_reuse_and_shared_parameters() -> None:
    total = torch.zeros(4, 4)
    for rank in range(2):
        weight = torch.eye(4, requires_grad=True)
        x = torch.full((1, 4), rank + 0.5)
        (torch.tanh(x @ weight.T) @ weight.T @ weight.T).sum().backward()
        total += weight.grad  # type: ignore[arg-type]
    for got in run("threads", 2, reused):
        torch.testing.assert_close(got, torch.eye(4) - 0.1 * total / 2)


class Recorder(Algorithm):
    """Notes when the engine calls it."""

    def __init__(self, when: When) -> None:
        self.moment, self.calls = when, []  # type: ignore[var-annotated]
        self.gradients = when is When.BACKWARD

    def turns(self, step: int) -> tuple[Turn, ...]:
        return (Turn(self.moment),)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        self.calls.append(("communicate", bucket.name, step, threading.current_thread().name))

    def finish(self, bucket: Bucket, step: int) -> None:
        self.calls.append(("finish", bucket.name, step, threading.current_thread().name))


@pytest.mark.parametrize("when", [When.BACKWARD, When.FORWARD, When.STEP])
def test_moments(when: When) -> None:
    net = Net()
    recorder = Recorder(when)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    calls = recorder.calls
    optimizer.register_step_pre_hook(lambda *_: calls.append(("optimizer", "", 0, "")))
    engine = Engine(net, optimizer, recorder, ThreadComm.world(1)[0], bucket_size=50, channels=1)
    with torch.no_grad():
        net.eval()(torch.ones(1, 4), True)  # an evaluation is no training step
    net.train()
    for _ in range(2):
        net(torch.ones(1, 4), True).sum().backward()
        engine.step()
    names = [bucket.name for bucket in engine.buckets]
    assert len(names) > 1
    for step in (1, 2):
        talk = [("communicate", name, step, "communication") for name in names]
        end = [("finish", name, step, "MainThread") for name in names]
        optimizer_step = [("optimizer", "", 0, "")]
        part, calls[: 2 * len(names) + 1] = calls[: 2 * len(names) + 1], []
        assert part == (optimizer_step + talk + end if when is When.STEP else talk + end + optimizer_step)
    engine.close()
