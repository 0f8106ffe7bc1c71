"""Batch norm over all ranks: equal to one process with the whole batch."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.engine.engine import Engine
from bagua_bench.layers.batch_norm import SyncBatchNorm, synchronize_batch_norms
from bagua_bench.worker.build import make_trainer
from tasks.resnet50 import ResNet50
from tests.catalogue import HOME, declared, resolved, runnable, short
from tests.ranks import run

KINDS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((5,), {}),
    ((5, 3), {"affine": False}),
    ((3, 4, 2), {"momentum": None}),
    ((3, 2, 3, 2), {"momentum": 0.3, "eps": 0.1}),
    ((4, 2, 2), {"track_running_stats": False}),
]


def made(shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    norm = KINDS[len(shape) + 1](shape[0], dtype=dtype, **options)
    if norm.affine:
        generator = torch.Generator().manual_seed(3)
        for p in norm.parameters():
            p.data = torch.randn(p.shape, generator=generator).to(dtype)
    return norm


def whole(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """Samples per rank, which differ; input and the gradient of the output, for three steps."""
    samples = [3 + 2 * rank for rank in range(size)]
    generator = torch.Generator().manual_seed(7)
    made = [(5 * torch.randn(sum(samples), *shape, generator=generator) + 20).to(dtype) for _ in range(6)]
    return samples, made[:3], made[3:]


def steps(norm: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {"out": [], "dx": []}
    for x, dy in zip(inputs, gradients, strict=True):
        x = x.clone().requires_grad_()
        y = norm(x)
        y.backward(dy)
        found["out"].append(y.detach())
        found["dx"].append(x.grad)
    found["dp"] = [p.grad for p in norm.parameters()]
    found["buffers"] = [b.clone() for b in norm.buffers()]
    norm.eval()
    found["out"].append(norm(inputs[0]).detach())
    return found


def on_ranks(comm: CountedComm, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    samples, inputs, gradients = whole(comm.size, shape, dtype)
    norm = synchronize_batch_norms(made(shape, options, dtype), comm)
    assert type(norm) is SyncBatchNorm
    return steps(norm, *([x.split(samples)[comm.rank] for x in each] for each in (inputs, gradients)))


@pytest.mark.parametrize(("shape", "options"), CASES)
@pytest.mark.parametrize(("kind", "size"), [("threads", 3), ("gloo", 2), ("bagua_net", 3)])
def test_output_gradients_and_statistics_are_those_of_the_whole_batch(
    kind: str, size: int, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    dtype = torch.float64
    ranks = run(kind, size, on_ranks, shape, options, dtype)
    one = steps(made(shape, options, dtype), *whole(size, shape, dtype)[1:])
    tracks = options.get("track_running_stats", True)
    for k in range(3 + tracks):  # without running statistics a batch is normalized by its own in evaluation, too
        parts = [found["out"][k] for found in ranks]
        expected = one["out"][k]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-9, atol=1e-9)
    for k in range(3):
        torch.testing.assert_close(torch.cat([found["dx"][k] for found in ranks]), one["dx"][k], rtol=1e-8, atol=1e-9)
    for k, expected in enumerate(one["dp"]):
        torch.testing.assert_close(sum(found["dp"][k] for found in ranks), expected, rtol=1e-8, atol=1e-9)
    for found in ranks:
        for own, expected in zip(found["buffers"], one["buffers"], strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


def in_half(comm: CountedComm) -> tuple[Tensor, Tensor]:
    """One rank's batch is empty, and types are bfloat16 around weights of float32."""
    norm = synchronize_batch_norms(nn.BatchNorm1d(4), comm)
    x = (torch.arange(32.0).view(8, 4) if comm.rank else torch.zeros(0, 4)).bfloat16().requires_grad_()
    y = norm(x)
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and x.grad is not None and x.grad.dtype is torch.bfloat16
    return y.detach().float(), norm.running_mean.clone()  # type: ignore[union-attr,operator]


def test_half_precision_and_an_empty_batch() -> None:
    (nothing, mean), (out, other) = run("threads", 2, in_half)
    assert not nothing.numel() and torch.equal(mean, other)
    expected = nn.BatchNorm1d(4)(torch.arange(32.0).view(8, 4)).detach()
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)


def trained(comm: CountedComm | None, size: int) -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    model = ResNet50(scale="tiny", image=32).model().double()
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(4 * size, 3, 32, 32, generator=generator).double() for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if comm is None:
        for x in batches:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    else:
        model = synchronize_batch_norms(model, comm)
        with Engine(model, optimizer, GradientAllReduce(), comm, bucket_size=20_000, channels=2) as engine:
            for x in batches:
                model(x.chunk(size)[comm.rank]).square().mean().backward()
                engine.step()
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    model.eval()
    return state, model(batches[0]).detach()


@pytest.mark.parametrize(("kind", "size"), [("gloo", 3), ("bagua_net", 2)])
def test_a_model_learns_what_one_process_learns_from_the_whole_batch(kind: str, size: int) -> None:
    state, out = trained(None, size)
    for other, found in run(kind, size, trained, size):
        assert list(other) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-9, msg=name)
        torch.testing.assert_close(found, out, rtol=1e-6, atol=1e-9)


def under(comm: CountedComm, cell: Cell) -> Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), nn.Flatten(), nn.Linear(64, 2))
    net = synchronize_batch_norms(net, comm)
    generator = torch.Generator().manual_seed(comm.rank)
    with make_trainer(cell, net, torch.optim.Adam(net.parameters(), lr=0.01), comm) as trainer:
        for _ in range(4):
            trainer.module(torch.randn(3, 3, 6, 6, generator=generator)).square().mean().backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return torch.cat([b.double().reshape(-1) for b in net.buffers()])


@pytest.mark.parametrize("name", [name for name in runnable() if not declared(name).rounds])
def test_replicas_have_the_same_statistics_under_every_algorithm(name: str) -> None:
    one, other = run("gloo", 2, under, resolved(f"algo={name}", *short(name)))
    assert torch.equal(one, other) and one[-1] == 4


def around(comm: CountedComm) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), nn.BatchNorm1d(4))
    named, keys = dict(model.named_parameters()), list(model.state_dict())
    before = comm.sent["flat"]
    same = synchronize_batch_norms(model, comm)
    assert same is model and list(model.state_dict()) == keys
    assert all(named[name] is p for name, p in model.named_parameters())
    assert sum(isinstance(m, SyncBatchNorm) for m in model.modules()) == 2
    assert [type(m) for m in synchronize_batch_norms(model, comm).modules()] == [type(m) for m in model.modules()]
    x = torch.randn(5, 3)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x))
    assert comm.sent["flat"] > before, "what layers send counts as the communicator's"
    stored = io.BytesIO()
    torch.save(model[2], stored)
    stored.seek(0)
    alone = torch.load(stored, weights_only=False)
    assert torch.isfinite(alone(torch.randn(5, 4))).all(), "it normalizes without others"
    sent = comm.sent["flat"]
    model.eval()
    model(x)
    assert comm.sent["flat"] == sent, "evaluation sends nothing"
    with pytest.raises(ValueError, match=r"^SyncBatchNorm: input of shape \(4,\); expected \(samples, channels"):
        model[2](torch.zeros(4))
    with pytest.raises(ValueError, match=r"LazyBatchNorm1d: not made yet"):
        synchronize_batch_norms(nn.Sequential(nn.LazyBatchNorm1d()), comm)


def test_a_model_stays_the_same_around_its_norms() -> None:
    run("threads", 2, around)


def too_few(comm: CountedComm) -> str:
    norm = synchronize_batch_norms(nn.BatchNorm1d(4), comm)
    try:
        norm(torch.zeros(1 - comm.rank, 4))
    except ValueError as error:
        return str(error)
    return ""


def test_one_value_per_channel_is_refused_on_all_ranks() -> None:
    for message in run("threads", 2, too_few):
        assert message == "SyncBatchNorm: 1 values per channel on all ranks; training needs more than 1"


def test_one_rank_keeps_its_layers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    [found] = run("threads", 1, lambda comm: synchronize_batch_norms(model, comm))
    assert found is model and type(model[0]) is nn.BatchNorm1d


def snippet(comm: CountedComm) -> None:
    page = (HOME / "docs" / "batch-norm.md").read_text()
    [code] = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", page, re.S)
    code = re.sub(r"^dist\.init_process_group.*$", "", code, flags=re.M)
    exec(compile(code, "batch-norm.md", "exec"), {})


def test_the_pages_snippet_runs() -> None:
    run("gloo", 2, snippet)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=async"], "task.sync_bn=true: ranks wait for each other in every layer, which algo=async"),
        (["mode=emulate", "compute.shrink=100"], "task.sync_bn=true: the layers of mode=emulate compute nothing"),
        (["mode=simulate"], "task.sync_bn=true: the layers of mode=simulate compute nothing"),
    ],
)
def test_impossible_combinations_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(resolved("task=resnet50", "task.sync_bn=true", *overrides))
    assert "\n" not in str(caught.value)


def in_half_weights(comm: CountedComm, dtype: torch.dtype) -> list[Tensor]:
    norm = synchronize_batch_norms(nn.BatchNorm1d(4).to(dtype), comm)
    x = (torch.arange(16.0).view(4, 4) + 16 * comm.rank).to(dtype).requires_grad_()
    norm(x).square().sum().backward()
    assert x.grad is not None
    found = [x.grad, *(p.grad for p in norm.parameters()), norm(x)]
    assert all(each is not None and each.dtype is dtype for each in found)
    return [each.detach().float() for each in found if each is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision(dtype: torch.dtype) -> None:
    found, whole = (run("threads", 2, in_half_weights, kind) for kind in (dtype, torch.float32))
    for half, single in zip(found, whole, strict=True):
        for own, expected in zip(half, single, strict=True):
            torch.testing.assert_close(own, expected, rtol=2e-2, atol=5e-2)


def under_two_names(comm: CountedComm) -> bool:
    norm = nn.BatchNorm1d(2)
    model = synchronize_batch_norms(nn.Sequential(norm, nn.ReLU(), norm), comm)
    assert isinstance(model, nn.Sequential)
    return type(model[0]) is SyncBatchNorm and model[2] is model[0]


def test_a_layer_that_is_used_twice_is_one_layer() -> None:
    assert run("threads", 2, under_two_names) == [True, True]
