"""One rank of `check-gpu`: `python -m bagua_bench.gpu.rank PART RANK SIZE DEVICE FOLDER` writes FOLDER/PART-RANK.pt."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
import torch.distributed as dist

from algorithms.base import Algorithm, When
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.gpu import parity, trace
from bagua_bench.gpu.models import Given
from bagua_bench.training import devices
from bagua_bench.training.engine import Engine

_TIMEOUT = 120.0  # seconds
_STEPS = 12
_SIZES = [4099, 70_001, 3, 20_000]
_SHORT = {"QAdam": {"warmup_steps": 4, "lr": 0.01}, "AsyncModelAverage": {"interval_ms": 5.0}}


def algorithms() -> Iterator[tuple[str, Callable[[], Algorithm]]]:
    """Every algorithm there is, with its defaults but for what makes a short run show something."""
    for module in iter_modules(import_module("algorithms").__path__):
        for name, found in vars(import_module(f"algorithms.{module.name}")).items():
            if inspect.isclass(found) and issubclass(found, Algorithm) and not inspect.isabstract(found):
                yield name, lambda found=found, name=name: found(**_SHORT.get(name, {}))  # type: ignore[misc]


def trained(make: Callable[[], Algorithm], comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """Weights after a few steps along given gradients, and what in the last two waited for the GPU.

    `waits`: None if nothing did; `traced`: whether a profiler's trace says so too.
    """
    model = Given(_SIZES).to(device)
    batches = [_batch(step, comm.rank).to(device) for step in range(_STEPS)]
    algorithm = make()
    watched = device.type == "cuda" and algorithm.moment(_STEPS) is not When.FREE  # whose own thread may wait
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.05), algorithm, comm, bucket_size=65_536)

    def step(batch: torch.Tensor) -> None:
        model(batch).backward()
        engine.step()

    with engine:
        for batch in batches[:-2]:
            step(batch)
        seen: list[str] | None = None
        refused: str | None = None
        if watched:
            seen = trace.traced(lambda: step(batches[-2]))
            refused = trace.nobody_waits(lambda: step(batches[-1]))
        else:
            step(batches[-2])
            step(batches[-1])
        with engine.paused():
            weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
        return {"weights": weights, "waits": refused or ", ".join(seen or []) or None, "traced": seen is not None}


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(sum(_SIZES), generator=torch.Generator().manual_seed(100 * step + rank))


def every_algorithm(comm: TorchComm, device: torch.device) -> dict[str, Any]:
    """By name: what `trained` returns, or the error."""
    found: dict[str, Any] = {}
    for name, make in algorithms():
        try:
            found[name] = trained(make, comm, device)
        except ValueError as error:
            found[name] = {"error": str(error)}
    return found


PARTS: dict[str, Callable[[TorchComm, torch.device], Any]] = {
    "algorithms": every_algorithm,
    "parity": parity.with_ddp,
    "overhead": parity.with_plain_torch,
}


def main() -> None:
    part, rank, size, name, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
    meeting, limit = f"file://{folder.resolve() / 'meeting'}", timedelta(seconds=_TIMEOUT)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=limit)
    device = devices.choose(name)
    if device.type == "cuda":
        devices.share(device)
    comm = TorchComm.create("nccl" if device.type == "cuda" else "gloo", _TIMEOUT)
    began = time.perf_counter()
    result = PARTS[part](comm, device)
    torch.save({"result": result, "seconds": time.perf_counter() - began}, folder / f"{part}-{name}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
