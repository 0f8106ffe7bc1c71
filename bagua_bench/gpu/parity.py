"""The engine's step against DDP's and against a step of plain torch, in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.gpu.models import workload
from bagua_bench.training.build import build
from bagua_bench.training.engine import Engine

_ROUNDS, _STEPS, _WARM = 7, 5, 3
_REHEARSAL = 16  # models are so many times narrower on a CPU, where only the script itself is tried ...
_FEW = 2  # ... in so many rounds of one step
_ALL_REDUCE = {"_target_": "algorithms.gradient_allreduce.GradientAllReduce"}

Step = Callable[[], None]


def with_ddp(comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """Throughput of the engine over that of DDP, gradient all-reduce, by model."""
    return {name: _compare(name, comm, device, _ddp) for name in ("vgg16", "bert_large")}


def with_plain_torch(comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """Throughput of the engine over that of plain torch, by model; for one rank, which has nothing to send."""
    return {name: _compare(name, comm, device, _plain) for name in ("vgg16", "bert_large")}


def _compare(name: str, comm: TorchComm, device: torch.device, other: Callable[..., Step]) -> dict[str, Any]:
    shrink = 1 if device.type == "cuda" else _REHEARSAL
    rivals = [_engine(*workload(name, shrink, device), comm), other(*workload(name, shrink, device), comm)]
    for step in rivals:
        _seconds(step, _WARM, device)
    count, steps = (_ROUNDS, _STEPS) if device.type == "cuda" else (_FEW, 1)
    rounds = [[_seconds(step, steps, device) for step in rivals] for _ in range(count)]
    ratios = sorted(theirs / ours for ours, theirs in rounds)
    engine, reference = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "engine_seconds": engine,
        "other_seconds": reference,
        "throughput_ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _engine(model: nn.Module, batch: Tensor, comm: TorchComm) -> Step:
    engine = Engine(model, _optimizer(model), build(_ALL_REDUCE), comm)

    def step() -> None:
        engine.module(batch).float().square().mean().backward()
        engine.step()

    return step


def _ddp(model: nn.Module, batch: Tensor, comm: TorchComm) -> Step:
    return _plain(DistributedDataParallel(model, process_group=comm.group), batch, comm)


def _plain(model: nn.Module, batch: Tensor, comm: TorchComm) -> Step:
    optimizer = _optimizer(model)

    def step() -> None:
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def _seconds(step: Step, steps: int, device: torch.device) -> float:
    """Seconds of a step, the GPU idle before and after `steps` of them."""
    _settle(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _settle(device)
    return (time.perf_counter() - began) / steps


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
