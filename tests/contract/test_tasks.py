"""What every task must do."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from bagua_bench.configuration import facts
from bagua_bench.configuration.components import build
from tasks.base import Task
from tasks.loading.elastic import Position
from tests.catalogue import options, resolved, subclasses, trained

TASKS = trained()

PARAMETERS = {"vgg16": 138_357_544, "bert_large": 334_094_338, "resnet50": 25_557_032, "transformer": 68_647_936}


def task(name: str, scale: str = "tiny", **changes: Any) -> Task:
    part = resolved(f"task={name}", f"task.scale={scale}").task
    made = build(part.target, {**part.options, **changes})
    assert isinstance(made, Task)
    return made


def test_every_class_has_a_configuration() -> None:
    targets = {resolved(f"task={name}").task.target for name in options("task")}
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in subclasses("tasks", Task)} == targets


@pytest.mark.parametrize("scale", ["paper", "cpu"])
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameters_are_the_paper_s_at_paper_and_cpu_scale(name: str, scale: str) -> None:
    with torch.device("meta"):
        model = task(name, scale).model()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", TASKS)
def test_batches_have_the_batch_size_and_depend_on_arguments_alone(name: str) -> None:
    first = list(islice(task(name).batches(1, 2, 7), 3))
    again = list(islice(task(name).batches(1, 2, 7), 3))
    other = list(islice(task(name).batches(0, 2, 7), 3))
    for batch, same, different in zip(first, again, other, strict=True):
        assert all(len(part) == task(name).batch for part in batch)
        assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
        assert not torch.equal(batch[0], different[0])


@pytest.mark.parametrize("name", [name for name in TASKS if facts.task(resolved(f"task={name}").task).elastic])
def test_what_is_declared_elastic_begins_where_it_is_told(name: str) -> None:
    """A data set goes on where it was; of a stream come batches that did not come before; Quadratic's are all alike."""
    made, size = task(name), 2
    before = list(islice(made.batches(1, size, 7), 4))
    begin = Position(0, 2 * size * made.batch)
    after = list(islice(made.resumed(1, size, 7, begin), 2))
    again = list(islice(made.resumed(1, size, 7, begin), 2))
    for batch, same in zip(after, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
    if made.synthetic and name != "quadratic":
        assert not any(torch.equal(new[0], old[0]) for new in after for old in before)
    else:
        for batch, same in zip(after, before[2:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    made = task(name)
    model = made.model()
    loss = made.loss(model, next(made.batches(0, 1, 0)))
    assert loss.shape == () and torch.isfinite(loss)
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


LEARNS = {  # steps, metric, and what a model that learned nothing would get
    "vgg16": (150, "top1", 0.1),
    "resnet50": (60, "top1", 0.1),
    "bert_large": (250, "f1", 0.2),
    "transformer": (250, "token_error_rate", 1 - 1 / 7 - 6 / 7 / 40),
    "quadratic": (30, "distance", 1.0),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_data_can_be_learned(name: str) -> None:
    """The metric moves well away from chance, on held-out data, and training mode is kept."""
    steps, metric, chance = LEARNS[name]
    torch.manual_seed(0)
    made = task(name)
    model = made.model()
    optimizer = made.optimizer(model)
    for batch in islice(made.batches(0, 1, 0), steps):
        optimizer.zero_grad()
        made.loss(model, batch).backward()
        optimizer.step()
    score = made.evaluate(model)[metric]
    assert model.training
    assert score < 0.93 * chance if metric in ("token_error_rate", "distance") else score > 3 * chance


def test_quadratic_optimum_is_where_the_mean_gradient_vanishes() -> None:
    made: Any = task("quadratic", dtype="float64")
    optimum = made.optimum(5, 3)
    gradient = sum(h @ (optimum - c) for h, c in (made.problem(rank, 3) for rank in range(5)))
    assert torch.as_tensor(gradient).norm() < 1e-12
    local = [c for _, c in (made.problem(rank, 3) for rank in range(5))]
    assert min(float((c - optimum).norm()) for c in local) > 1, "the local optima differ from the global one"
