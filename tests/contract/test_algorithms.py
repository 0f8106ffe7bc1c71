"""What every algorithm must do, whatever it is."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.base import Algorithm
from bagua_bench.comm import CountedComm
from bagua_bench.training.build import make_trainer
from tasks.quadratic import Quadratic
from tests.catalogue import HOME, options, resolved, subclasses
from tests.ranks import run

NAMES = [name for name in options("algo") if "peers" not in resolved(f"algo={name}")["algo"]["_target_"]]
FILES = sorted({Path(resolved(f"algo={n}")["algo"]["_target_"].rpartition(".")[0].replace(".", "/")) for n in NAMES})


def train(comm: CountedComm, cell: dict[str, Any], steps: int) -> tuple[torch.Tensor, float]:
    task = Quadratic(lr=0.2)
    model = task.model()
    trainer = make_trainer(cell, model, task.optimizer(model), comm)
    for batch in islice(task.batches(comm.rank, comm.size, 0), steps):
        task.loss(trainer.module, batch).backward()
        trainer.synchronize()
        trainer.optimize()
        trainer.publish()
    with trainer.paused():
        result = model().detach().clone()
    trainer.close()
    return result, trainer.consensus


def test_every_class_has_a_configuration() -> None:
    targets = {resolved(f"algo={name}")["algo"]["_target_"] for name in NAMES}
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in subclasses("algorithms", Algorithm)} == targets


@pytest.mark.parametrize(("size", "per_server"), [(1, 1), (2, 1), (4, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_towards_the_optimum_and_keeps_its_promise_on_replicas(name: str, size: int, per_server: int) -> None:
    cell = resolved(f"algo={name}", "task=quadratic")
    results = run("threads", size, train, cell, 40, per_server=per_server)
    optimum = Quadratic().optimum(size, 0)
    mean = torch.stack([x for x, _ in results]).double().mean(0)
    assert (mean - optimum).norm() < 0.2 * optimum.norm()
    for x, consensus in results:
        distance = float((x.double() - mean).norm() / mean.norm())
        assert torch.equal(x, results[0][0]) if consensus == 0 else distance <= consensus


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_short_and_know_nothing_of_ranks_or_bytes(path: Path) -> None:
    source = (HOME / path).with_suffix(".py").read_text()
    assert len(source.splitlines()) <= 70
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert not names & {"rank", "nbytes", "itemsize", "element_size", "sent"}
    assert ast.get_docstring(ast.parse(source))
