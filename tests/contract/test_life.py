"""What every algorithm must survive: restarts from a checkpoint, a successor on the same model, the death of a rank."""

from __future__ import annotations

import io
import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bagua_bench.comm import CommError, CountedComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine.engine import Engine
from bagua_bench.worker.build import make_trainer
from tasks.quadratic import Quadratic
from tests.catalogue import resolved, short
from tests.contract.test_algorithms import ALIKE, NAMES
from tests.ranks import outcomes, run

VARIANTS = [
    *([name] for name in ALIKE),
    ["decentralized", "algo.peers=all"],
    ["decentralized", "algo.interval=2"],
    ["low_precision_decentralized", "algo.interval=3"],
    ["qadam", "algo.codec=minmax_uint8"],
]


def cell_of(name: str, *options: str, size: int = 2) -> Cell:
    return resolved(f"algo={name}", "task=quadratic", f"cluster.servers={size}", *short(name), *options)


def build(comm: CountedComm, cell: Cell) -> tuple[Quadratic, nn.Module, Engine]:
    task = Quadratic(lr=0.1)
    model = task.model()
    engine = make_trainer(cell, model, task.optimizer(model), comm)
    assert isinstance(engine, Engine)
    return task, model, engine


def steps(engine: Engine, task: Quadratic, comm: CountedComm, count: int, pause: float = 0.0) -> None:
    for batch in islice(task.batches(comm.rank, comm.size, 0), count):
        task.loss(engine.module, batch).backward()
        engine.step()
        time.sleep(pause)


def straight(comm: CountedComm, cell: Cell, total: int) -> Tensor:
    task, model, engine = build(comm, cell)
    with engine:
        steps(engine, task, comm, total)
        return model().detach().clone()


def interrupted(comm: CountedComm, cell: Cell, at: int, total: int) -> Tensor:
    task, model, engine = build(comm, cell)
    with engine:
        steps(engine, task, comm, at)
        file = io.BytesIO()
        with engine.paused():
            torch.save([model.state_dict(), engine.optimizer.state_dict(), engine.state_dict()], file)
    file.seek(0)
    saved = torch.load(file)
    task, model, engine = build(comm, cell)
    with engine:
        for part, state in zip((model, engine.optimizer, engine), saved, strict=True):
            part.load_state_dict(state)
        steps(engine, task, comm, total - at)
        return model().detach().clone()


@pytest.mark.parametrize("at", [4, 15])  # in QAdam's first stage and in its second
@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_continuing_from_a_checkpoint_is_not_having_stopped(variant: list[str], at: int) -> None:
    for size in (2, 4):
        cell = cell_of(*variant, size=size)
        expected = run("threads", size, straight, cell, 20)
        for got, wanted in zip(run("threads", size, interrupted, cell, at, 20), expected, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ALIKE)
def test_continuing_from_a_checkpoint_on_processes(name: str) -> None:
    cell = cell_of(name)
    expected = run("gloo", 2, straight, cell, 20)
    for got, wanted in zip(run("gloo", 2, interrupted, cell, 15, 20), expected, strict=True):
        assert torch.equal(got, wanted)


def hooks(model: nn.Module) -> int:
    """Hooks on the model and on its parameters, of every kind that torch shows."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    return on_modules + sum(len(p._post_accumulate_grad_hooks or {}) for p in model.parameters())  # type: ignore[attr-defined]


def relay(comm: CountedComm, cells: list[Cell]) -> tuple[list[int], Tensor]:
    """One model trained by one algorithm after the other."""
    task = Quadratic(lr=0.1)
    model = task.model()
    left = []
    for cell in cells:
        with make_trainer(cell, model, task.optimizer(model), comm) as engine:
            assert isinstance(engine, Engine)
            steps(engine, task, comm, 8, pause=0.002)
        left.append(hooks(model))
    return left, model().detach().clone()


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_switching_algorithms_leaves_nothing_behind(kind: str) -> None:
    """The last of them trains as it does on a model that has seen no other: same weights from the same start."""
    cells = [cell_of(name, size=2) for name in NAMES]
    for left, _ in run(kind, 2, relay, cells):
        assert left == [0] * len(NAMES)


def test_a_successor_starts_from_where_its_predecessor_ended() -> None:
    first, second = cell_of("bytegrad"), cell_of("gradient_allreduce")
    task = Quadratic(lr=0.1)
    x = run("threads", 2, relay, [first])[0][1].double()
    problems = [tuple(t.double() for t in task.problem(rank, 0)) for rank in range(2)]
    for _ in range(8):
        x = x - 0.1 * torch.stack([h @ (x - c) for h, c in problems]).mean(0)
    for _, got in run("threads", 2, relay, [first, second]):
        torch.testing.assert_close(got.double(), x, rtol=1e-5, atol=1e-6)


def die(comm: CountedComm, cell: Cell, victim: int, at: int, death: Path) -> float:
    """Seconds from the death of the victim to the error of this rank."""
    task, _, engine = build(comm, cell)
    with pytest.raises(CommError), engine:
        steps(engine, task, comm, at, pause=0.01)
        if comm.rank == victim:
            death.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        steps(engine, task, comm, 500, pause=0.01)
    return time.monotonic() - float(death.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_rank_ends_its_peers_with_an_error(name: str, tmp_path: Path) -> None:
    killed, *others = outcomes("gloo", 2, die, cell_of(name), 0, 12, tmp_path / "death", timeout=20.0)
    assert isinstance(killed, RuntimeError) and "ended without a result" in str(killed)
    assert all(isinstance(seconds, float) for seconds in others), others
    assert max(others) < 20 + 20, "the peers waited longer than the time-out"
