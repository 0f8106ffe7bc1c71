"""What every algorithm must do, whatever it is."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from algorithms.base import Algorithm
from bagua_bench.comm import CountedComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.validate import validate
from bagua_bench.engine.trainer import Trainer
from bagua_bench.worker.build import make_trainer
from tasks.quadratic import Quadratic
from tests.catalogue import HOME, algorithms, declared, resolved, short, subclasses
from tests.linear import Linear
from tests.ranks import run

NAMES = algorithms()
FILES = sorted({Path(resolved(f"algo={n}").algo.target.rpartition(".")[0].replace(".", "/")) for n in NAMES})


ALIKE = [name for name in NAMES if not declared(name).rounds]
"""Whose runs are alike; rounds beside the steps fall where they fall."""


def train(
    comm: CountedComm, cell: Cell, steps: int, wait_for_all: Callable[[], object] = dist.barrier
) -> tuple[torch.Tensor, float]:
    """Weights and consensus. Ranks take steps together: one that took some alone would take all models to its own
    optimum.
    """
    task = Quadratic(lr=0.1)
    model = task.model()
    with make_trainer(cell, model, task.optimizer(model), comm) as trainer:
        for batch in islice(task.batches(comm.rank, comm.size, 0), steps):
            task.loss(trainer.module, batch).backward()
            trainer.synchronize()
            wait_for_a_round(trainer)
            trainer.optimize()
            trainer.finish_step()
            wait_for_all()
        with trainer.paused():
            return model().detach().clone(), trainer.consensus


def wait_for_a_round(trainer: Trainer) -> None:
    """Let an averaging round be applied in this step, however busy the machine is."""
    if trainer.rounds is not None:
        before, limit = trainer.rounds.applied, time.monotonic() + 60
        while trainer.rounds.applied == before:
            assert time.monotonic() < limit, "no averaging round was applied within 60 s"
            time.sleep(0.001)


def test_every_class_has_a_configuration() -> None:
    targets = {resolved(f"algo={name}").algo.target for name in NAMES}
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in subclasses("algorithms", Algorithm)} == targets


@pytest.mark.parametrize(("size", "per_server"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_towards_the_optimum_and_keeps_its_promise_on_replicas(name: str, size: int, per_server: int) -> None:
    layout = [f"cluster.servers={size // per_server}", f"cluster.ranks_per_server={per_server}"]
    cell = resolved(f"algo={name}", "task=quadratic", *layout, *short(name))
    validate(cell)
    results = run("threads", size, train, cell, 100, partial(threading.Barrier(size).wait, 60), per_server=per_server)
    optimum = Quadratic().optimum(size, 0)
    mean = torch.stack([x for x, _ in results]).double().mean(0)
    assert (mean - optimum).norm() < 0.4 * optimum.norm()
    norm = torch.stack([x.double().norm() for x, _ in results]).mean()
    for x, consensus in results:
        distance = float((x.double() - mean).norm() / norm)
        assert torch.equal(x, results[0][0]) if consensus == 0 else distance <= consensus


def follow(comm: CountedComm, cell: Cell, dtype: torch.dtype) -> torch.Tensor:
    """Weights after ten steps along given gradients, float32."""
    model = Linear(50).to(dtype)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        for step in range(10):
            generator = torch.Generator().manual_seed(100 * step + comm.rank)
            trainer.module(torch.randn(50, generator=generator).to(dtype)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
    return model.x.detach().float()


@pytest.mark.parametrize("kind", ["threads", "gloo"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALIKE)
def test_half_precision_follows_single_precision(name: str, dtype: torch.dtype, kind: str) -> None:
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    expected = run("threads", 2, follow, cell, torch.float32)
    results = run(kind, 2, follow, cell, dtype)
    for got, wanted in zip(results, expected, strict=True):
        assert torch.isfinite(got).all()
        assert (got - wanted).norm() < 32 * torch.finfo(dtype).eps * wanted.norm()
    if facts.equal_replicas(cell.algo):
        assert torch.equal(results[0], results[1]), "replicas differ"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_short_and_know_nothing_of_ranks_or_bytes(path: Path) -> None:
    source = (HOME / path).with_suffix(".py").read_text()
    assert len(source.splitlines()) <= 70
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert not names & {"rank", "nbytes", "itemsize", "element_size", "sent"}
    assert ast.get_docstring(ast.parse(source))
