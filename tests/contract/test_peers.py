"""What every peer system must do, whatever it is, in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bagua_bench.comm import CountedComm
from bagua_bench.configuration import facts, validate
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.engine.trainer import Trainer
from bagua_bench.sources.signature import attributes
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.snapshot import Snapshot
from tasks.quadratic import Quadratic
from tests.catalogue import absent, declared, options, peers, resolved, short
from tests.contract.test_facts import Shaped, gradient, place, shaped
from tests.linear import Linear
from tests.ranks import outcomes, run

PEERS = peers()
SIZE = 2**12  # elements whose traffic is looked at


def cell_of(name: str, *options: str, size: int = 2) -> Cell:
    return resolved(f"algo={name}", "task=quadratic", f"cluster.servers={size}", *short(name), *options)


@contextmanager
def attached(comm: CountedComm, cell: Cell) -> Iterator[tuple[Quadratic, Trainer]]:
    task = Quadratic(lr=0.1)
    model = task.model()
    with make_trainer(cell, model, task.optimizer(model), comm) as trainer:
        yield task, trainer


def steps(task: Quadratic, trainer: Trainer, comm: CountedComm, count: int) -> Tensor:
    """The weights after so many steps."""
    for batch in islice(task.batches(comm.rank, comm.size, 0), count):
        task.loss(trainer.module, batch).backward()
        trainer.synchronize()
        trainer.optimize()
        trainer.finish_step()
    with trainer.paused():
        return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


def trained(comm: CountedComm, cell: Cell, count: int) -> Tensor:
    with attached(comm, cell) as (task, trainer):
        return steps(task, trainer, comm, count)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", [name for name in PEERS if declared(name).same_update])
def test_after_20_steps_weights_are_those_of_gradient_all_reduce(name: str, size: int) -> None:
    ours = run("gloo", size, trained, cell_of("gradient_allreduce", size=size), 20)
    theirs = run("gloo", size, trained, cell_of(name, size=size), 20)
    tolerance = declared(name).tolerance
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= tolerance * one.norm()


@pytest.mark.parametrize("name", PEERS)
def test_replicas_are_equal_or_not_as_their_consensus_says(name: str) -> None:
    """After two steps in a row: those that average now and then are equal after exactly one of them."""
    cell = cell_of(name)
    behind = facts.algorithm(cell.algo).warm_up + 2 * facts.algorithm(cell.algo).period
    pairs = [run("gloo", 2, trained, cell, count) for count in (behind, behind + 1)]
    rounding = 0.0 if facts.equal_replicas(cell.algo) else 1e-6  # a mean that is a sum of differences is not bit-equal
    equal = sum(bool((first - second).norm() <= rounding * first.norm()) for first, second in pairs)
    assert equal == (2 if facts.equal_replicas(cell.algo) else 1)


def traffic(comm: CountedComm, cell: Cell, count: int) -> list[float]:
    """Bytes that this rank sends in each step."""
    model = Shaped((64, SIZE // 64)) if facts.algorithm(cell.algo).needs_shapes else Linear(SIZE)
    sent = []
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        for step in range(count):
            before = sum(trainer.sent().values())
            trainer.module(gradient(comm.rank, step, SIZE)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
            sent.append(sum(trainer.sent().values()) - before)
    return sent


@pytest.mark.parametrize("name", PEERS)
def test_traffic_repeats_with_the_declared_period_after_the_declared_warm_up(name: str) -> None:
    cell = cell_of(name)
    fact = facts.algorithm(cell.algo)
    sent = run("gloo", 2, traffic, cell, fact.warm_up + 4 * fact.period)[0]
    later = sent[fact.warm_up :]
    assert later[: -fact.period] == later[fact.period :]
    assert sum(later) > 0
    shorter = [p for p in range(1, fact.period) if fact.period % p == 0]
    assert all(later[:-p] != later[p:] for p in shorter), "its period is shorter"
    assert sent[: fact.warm_up] == [4 * SIZE] * fact.warm_up
    assert not fact.warm_up or fact.period > 1 or later[0] != 4 * SIZE, "its warm-up is longer"


def twice(comm: CountedComm, cell: Cell, count: int) -> tuple[Tensor, Tensor]:
    """Weights after some steps, and after the same steps when training has started over."""
    with attached(comm, cell) as (task, trainer):
        start = Snapshot(trainer.model)
        first = steps(task, trainer, comm, count)
        with trainer.paused():
            start.restore(trainer.model, trainer.optimizer)
            trainer.restart()
        return first, steps(task, trainer, comm, count)


@pytest.mark.parametrize("name", PEERS)
def test_starting_over_is_starting(name: str) -> None:
    """Within rounding: DDP makes other buckets after its first step."""
    cell = cell_of(name)
    count = facts.algorithm(cell.algo).warm_up + 6
    for first, again in run("gloo", 2, twice, cell, count):
        torch.testing.assert_close(again, first, rtol=1e-5, atol=1e-6)


def accumulated(comm: CountedComm, cell: Cell) -> tuple[Tensor, float]:
    """Weights after a step of two batches, and the bytes sent in the first of them."""
    model = Linear(64)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=1.0), comm) as trainer:
        before = sum(trainer.sent().values())
        with trainer.no_sync():
            trainer.module(gradient(comm.rank, 0)).backward()
        early = sum(trainer.sent().values()) - before
        trainer.module(gradient(comm.rank, 1)).backward()
        trainer.synchronize()
        trainer.optimize()
        trainer.finish_step()
        return place(trainer, model), early


@pytest.mark.parametrize("name", [name for name in PEERS if declared(name).same_update])
def test_gradients_of_several_batches_add_up(name: str) -> None:
    mean = sum(gradient(rank, step) for rank in range(2) for step in range(2)) / 2
    for got, _ in run("gloo", 2, accumulated, cell_of(name)):
        torch.testing.assert_close(got, torch.linspace(-1, 1, 64) - mean, rtol=0, atol=4e-3)


def skipped(comm: CountedComm, cell: Cell, leave_out: bool) -> Tensor:
    """Weights after steps of which one overflows everywhere, or is not taken at all."""
    model = Linear(64)
    bad = facts.algorithm(cell.algo).warm_up + 3
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        trainer.scale = LossScale(torch.device("cpu"), 1.0)
        for step in range(bad + 4):
            if step == bad and leave_out:
                continue
            g = torch.full((64,), torch.inf) if step == bad else gradient(comm.rank, step)
            trainer.scale.scaled(trainer.module(g)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return place(trainer, model)


@pytest.mark.parametrize("name", [name for name in PEERS if facts.equal_replicas(cell_of(name).algo)])
def test_a_step_that_may_be_skipped_leaves_no_trace(name: str) -> None:
    taken, left_out = (run("gloo", 2, skipped, cell_of(name), way) for way in (False, True))
    alike = all(torch.equal(a, b) for a, b in zip(taken, left_out, strict=True))
    assert alike == declared(name).skips_steps


@pytest.mark.parametrize("name", PEERS)
def test_who_does_not_need_shapes_does_not_see_them(name: str) -> None:
    cell = cell_of(name)
    matrix, vector = (run("gloo", 2, shaped, cell, shape) for shape in ((8, 8), (64,)))
    alike = all(torch.equal(a, b) for a, b in zip(matrix, vector, strict=True))
    assert alike != declared(name).needs_shapes


@pytest.mark.parametrize("name", [name for name in options("algo") if declared(name).peer])
def test_a_peer_that_is_not_installed_is_named(name: str) -> None:
    if (reason := absent(name)) is not None:
        pytest.skip(f"no test of it runs: {reason}")
    package = attributes(resolved(f"algo={name}", "mode=simulate").algo.target).get("package")
    assert package is None or import_module(package)


def working(comm: CountedComm, cell: Cell) -> bool:
    with attached(comm, cell) as (_, trainer):
        return trainer.trains


@pytest.mark.parametrize(
    ("name", "own"), [*((name, 0) for name in PEERS), ("parameter_server", 1), ("parameter_server", 2)]
)
def test_the_last_servers_only_serve_if_that_is_declared(name: str, own: int) -> None:
    cell = cell_of(name, *[f"algo.own_machines={own}"] * (own > 0), size=3)
    fact = facts.algorithm(cell.algo)
    assert fact.serving == own and fact.workers(cell.cluster) == 3 - own
    assert run("gloo", 3, working, cell) == [rank < 3 - own for rank in range(3)]


@pytest.mark.parametrize("name", ["horovod", "torchft", "torchft_localsgd", "torchft_diloco", "hivemind"])
def test_without_its_package_it_is_refused_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda package: None)
    reason = validate.absent(resolved(f"algo={name}"))
    assert reason is not None and re.fullmatch(
        rf"algo={name}: needs \w+, which is not installed: (pip|bagua).*", reason
    )
    assert validate.absent(resolved(f"algo={name}", "mode=simulate")) is None
    assert validate.absent(resolved("algo=ddp")) is None


def dies(comm: CountedComm, cell: Cell, death: Path) -> float:
    """Steps that rank 1 does not survive; seconds from its death to the error of the other."""
    with pytest.raises(RuntimeError), attached(comm, cell) as (task, trainer):
        steps(task, trainer, comm, 10)
        if comm.rank == 1:
            death.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        steps(task, trainer, comm, 10_000)
    return time.monotonic() - float(death.read_text())


@pytest.mark.parametrize("name", PEERS)
def test_a_killed_rank_ends_its_peers_within_the_time_out(name: str, tmp_path: Path) -> None:
    seconds, killed = outcomes("gloo", 2, dies, cell_of(name), tmp_path / "death", timeout=20.0)
    assert isinstance(killed, RuntimeError) and "ended without a result" in str(killed)
    assert isinstance(seconds, float), seconds
    assert seconds < 20 + 20
