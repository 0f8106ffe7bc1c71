"""Compares the engine's step with DDP's and with a step of plain torch, taken in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.components import build
from bagua_bench.engine.engine import Engine
from bagua_bench.gpu.cases import ALL_REDUCE
from bagua_bench.gpu.models import workload

_BUCKET = 25  # MiB, DDP's default, for both: ranks that share a GPU wait for their turn at least once per bucket
_SECONDS = 25.0  # for all rounds of a model
_LEAST, _MOST = 3, 25  # rounds
_AT_ONCE = 0.3  # seconds that the steps of a round should fill
_REHEARSAL = 16  # how many times narrower models are on a CPU, where only the script itself is tried
_FEW = 2  # rounds on a CPU, of one step each

Step = Callable[[], None]


def with_ddp(comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """Throughput of the engine with gradient all-reduce over that of DDP, by model."""
    return {name: _compare(name, comm, device, _ddp) for name in ("vgg16", "bert_large")}


def with_plain_torch(comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """Throughput of the engine over that of plain torch, by model; for one rank, which has nothing to send."""
    return {name: _compare(name, comm, device, _plain) for name in ("vgg16", "bert_large")}


def _compare(name: str, comm: TorchComm, device: torch.device, other: Callable[..., Step]) -> dict[str, Any]:
    shrink = 1 if device.type == "cuda" else _REHEARSAL
    rivals = [_engine(*workload(name, shrink, device), comm), other(*workload(name, shrink, device), comm)]
    for step in rivals:
        _seconds(step, 2, device)
    rounds = _rounds(rivals, device)
    ratios = sorted(theirs / ours for ours, theirs in rounds)
    engine, reference = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "engine_seconds": engine,
        "other_seconds": reference,
        "throughput_ratio": statistics.median(ratios),
        "ratios": ratios,
        "bucket_mebibytes": _BUCKET,
    }


def _rounds(rivals: list[Step], device: torch.device) -> list[list[float]]:
    """Seconds per step of each rival, by round; they take turns going first. All ranks take equally many of both."""
    began, rounds = time.perf_counter(), list[list[float]]()
    steps = 1 if device.type != "cuda" else _of_rank_0(max(1, round(_AT_ONCE / _seconds(rivals[0], 1, device))))
    more = True
    while more:
        order = [0, 1] if len(rounds) % 2 else [1, 0]
        taken = {k: _seconds(rivals[k], steps, device) for k in order}
        rounds.append([taken[0], taken[1]])
        late = time.perf_counter() - began > _SECONDS or len(rounds) == _MOST
        more = bool(_of_rank_0(len(rounds) < _LEAST or not late)) if device.type == "cuda" else len(rounds) < _FEW
    return rounds


def _of_rank_0(value: int) -> int:
    """Rank 0's value, broadcast over gloo from host to host."""
    said = torch.tensor([value])
    dist.broadcast(said, 0)
    return int(said)


def _engine(model: nn.Module, batch: Tensor, comm: TorchComm) -> Step:
    engine = Engine(model, _optimizer(model), build(ALL_REDUCE, {}), comm, bucket_size=_BUCKET * 2**20)

    def step() -> None:
        engine.module(batch).float().square().mean().backward()
        engine.step()

    return step


def _ddp(model: nn.Module, batch: Tensor, comm: TorchComm) -> Step:
    return _plain(DistributedDataParallel(model, process_group=comm.group, bucket_cap_mb=_BUCKET), batch, comm)


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
    """Seconds per step over `steps` steps; the GPU is idle before and after them."""
    _settle(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _settle(device)
    return (time.perf_counter() - began) / steps


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
