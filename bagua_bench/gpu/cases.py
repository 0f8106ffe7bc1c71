"""What the ranks of `check-gpu` train: a few steps along given gradients, which ranks on CPUs can repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from algorithms.base import Algorithm, When
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import AlgoPart
from bagua_bench.configuration.components import build
from bagua_bench.configuration.facts import AlgorithmFacts
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.gpu import trace
from bagua_bench.gpu.models import Given
from bagua_bench.worker.loop import Loop
from tasks.base import Batch, Task

ALL_REDUCE = "algorithms.gradient_allreduce.GradientAllReduce"
_STEPS = 12
_SIZES = [4099, 70_001, 3, 20_000]
_HALF = 1e-2  # relative distance of weights that 16 bits can resolve

Found = dict[str, Any]
"""`weights` (N,), on the CPU; `tolerance`, their largest distance from the CPU's; `waits`, `traced` of `_watched`."""


class Case(NamedTuple):
    """An algorithm and the dtype of the weights, which the gradients in its buckets share."""

    kind: type[Algorithm]
    arguments: dict[str, Any]
    dtype: torch.dtype
    tolerance: float


def cases(hierarchical: bool) -> Iterator[tuple[str, Case]]:
    """Every algorithm with its file's options, adapted to few steps; some also in half precision."""
    for name in conf_folder.names("algo"):
        algo = AlgoPart.from_plain({"name": name, **conf_folder.option("algo", name)})
        about, kind = algo.about or {}, _class(algo.target)
        if about.get("peer"):
            continue
        arguments = {**algo.options, **about.get("short", {})}
        for option in about.get("compare", [[]])[-1] if hierarchical else ():
            key, _, value = option.partition("=")
            arguments[key] = {"true": True, "false": False}.get(value, value)
        # no two runs of an algorithm that averages in rounds alongside the steps are alike
        tolerance = kind.consensus if about.get("rounds") else about.get("tolerance", AlgorithmFacts.tolerance)
        yield name, Case(kind, arguments, torch.float32, tolerance)
        for dtype in (torch.bfloat16, torch.float16) if about["same_update"] else ():
            yield f"{name}, {str(dtype).removeprefix('torch.')}", Case(kind, arguments, dtype, _HALF)


def _class(target: str) -> type[Algorithm]:
    module, _, name = target.rpartition(".")
    found: type[Algorithm] = getattr(import_module(module), name)
    return found


def trained(case: Case, comm: TorchComm, device: torch.device) -> Found:
    """Train a model whose gradients are given."""
    model = Given(_SIZES).to(device, case.dtype)
    batches = [_batch(step, comm.rank).to(device, case.dtype) for step in range(_STEPS)]
    algorithm = case.kind(**case.arguments)
    engine = Engine(model, SGD(model.parameters(), lr=0.05), algorithm, comm, bucket_size=65_536)

    def step(batch: Tensor) -> None:
        model(batch).backward()
        engine.step()

    with engine:
        for batch in batches[:-2]:
            step(batch)
        asynchronous = any(
            turn.when is When.ASYNC for turn in algorithm.turns(_STEPS)
        )  # a separate thread averages, and it may wait
        found = _watched(step, batches[-2:], device.type == "cuda" and not asynchronous)
        with engine.paused():
            return {**found, "weights": _weights(model), "tolerance": case.tolerance}


def _watched(step: Callable[[Tensor], None], batches: list[Tensor], watch: bool) -> Found:
    """Take two steps. `waits`: the calls that waited for the GPU; `traced`: whether a profiler's trace covers them."""
    if not watch:
        for batch in batches:
            step(batch)
        return {"waits": None, "traced": None}
    seen = trace.traced(lambda: step(batches[0]))
    refused = trace.nobody_waits(lambda: step(batches[1]))
    return {"waits": refused or ", ".join(seen or []) or None, "traced": seen is not None}


def _batch(step: int, rank: int) -> Tensor:
    return torch.randn(sum(_SIZES), generator=torch.Generator().manual_seed(100 * step + rank))


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


class _Regression(Task):
    """Matrix products, which autocast runs in half precision."""

    batch, synthetic, samples_per_epoch = 8, True, 8

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.05)

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(rank)
        while True:
            yield (torch.randn(self.batch, 64, generator=generator),)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = (model(batch[0]).float() - batch[0].sum(1, keepdim=True)).square().mean()
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


def under_autocast(precision: str, comm: TorchComm, device: torch.device) -> Found:
    """The loop of measured runs, with two batches per step."""
    task = _Regression()
    torch.manual_seed(1)
    model = task.model().to(device)
    with Engine(model, task.optimizer(model), build(ALL_REDUCE, {}), comm) as engine:
        engine.scale = LossScale(device, 2.0**8) if precision == "fp16" else None
        loop = Loop(engine, task, device, 2, lambda *_: None, precision=precision)
        loop.take(islice(task.batches(comm.rank, comm.size, 0), 2 * _STEPS), _STEPS, "timed")
        return {"weights": _weights(model), "tolerance": _HALF, "waits": None, "traced": None}


def everything(comm: TorchComm, device: torch.device) -> dict[str, Found]:
    """What was found, or `error`, by name."""
    found: dict[str, Found] = {}
    for name, case in cases(comm.intra is not None):
        try:
            found[name] = trained(case, comm, device)
        except ValueError as error:
            found[name] = {"error": str(error)}
    for precision in ("bf16", "fp16"):
        found[f"autocast {precision}"] = under_autocast(precision, comm, device)
    return found
