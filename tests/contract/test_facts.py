"""What is declared of algorithms and peers, measured: a wrong or missing declaration fails here."""

from __future__ import annotations

import csv
import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from algorithms.base import Algorithm, Carry, When
from bagua_bench.comm import CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Submit
from bagua_bench.sources.signature import attributes
from bagua_bench.worker.build import make_trainer
from tasks.quadratic import Quadratic
from tests.catalogue import HOME, algorithms, declared, options, resolved, runnable, short
from tests.linear import Linear
from tests.ranks import run

NAMES = algorithms()
SIZE = 256  # elements whose traffic is looked at: of fewer, what goes with compressed ones hides the difference
IN_STEPS = [name for name in NAMES if not declared(name).rounds]


def cells(name: str, *more: str) -> Iterator[Cell]:
    """The algorithm with its options, and with other numbers in them."""
    plain = resolved(f"algo={name}", "task=quadratic", *short(name), *more)
    yield plain
    for key, value in plain.algo.options.items():
        if type(value) is int:
            yield resolved(f"algo={name}", "task=quadratic", *short(name), *more, f"algo.{key}={value + 2}")


@pytest.mark.parametrize("name", NAMES)
def test_whether_replicas_may_differ_stands_in_the_class_itself(name: str) -> None:
    """It is read without importing torch (`validate`)."""
    algo = resolved(f"algo={name}", "task=quadratic", *short(name)).algo
    assert attributes(algo.target).get("consensus", 0.0) == build(algo.target, algo.options).consensus


def traffic(comm: CountedComm, cell: Cell, steps: int) -> list[float]:
    """Bytes that this rank sends in each step."""
    model = Linear(SIZE)
    sent = []
    engine = make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm)
    assert isinstance(engine, Engine)
    with engine:
        for step in range(steps):
            before = sum(engine.sent().values())
            engine.module(gradient(comm.rank, step, SIZE)).backward()
            engine.step()
            sent.append(sum(engine.sent().values()) - before)
    return sent


def gradient(rank: int, step: int, size: int = 64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + rank))


@pytest.mark.parametrize("name", IN_STEPS)
def test_traffic_repeats_with_the_declared_period_after_the_declared_warm_up(name: str) -> None:
    for cell in cells(name):
        fact = facts.algorithm(cell.algo)
        sent = run("threads", 4, traffic, cell, fact.warm_up + 4 * fact.period)[0]
        later = sent[fact.warm_up :]
        assert later[: -fact.period] == later[fact.period :], cell.algo
        assert sum(later) > 0, "it communicates nothing"
        shorter = [p for p in range(1, fact.period) if fact.period % p == 0]
        assert all(later[:-p] != later[p:] for p in shorter), f"its period is shorter: {cell.algo}"
        all_reduce = 2 * 3 / 4 * SIZE * 4
        assert sent[: fact.warm_up] == [all_reduce] * fact.warm_up
        assert not fact.warm_up or later[0] != all_reduce, "its warm-up is longer"


@pytest.mark.parametrize("name", [name for name in IN_STEPS if not declared(name).buckets])
def test_the_share_of_an_all_reduces_bytes_is_declared(name: str) -> None:
    """With its own options, of a step in which it sends."""
    cell = next(cells(name))
    fact = facts.algorithm(cell.algo)
    sent = run("threads", 4, traffic, cell, fact.warm_up + fact.period)[0]
    share = fact.warm_up_share + (1 - fact.warm_up_share) * max(sent[fact.warm_up :]) / (2 * 3 / 4 * SIZE * 4)
    assert share / 2 <= fact.line_share <= 2 * share
    assert fact.line_share == build(cell.algo.target, cell.algo.options).line_share


def moments(algorithm: Algorithm, step: int) -> set[When]:
    return {turn.when for turn in algorithm.turns(step)}


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(IN_STEPS)))
def test_rounds_beside_the_steps_are_declared(name: str) -> None:
    for cell in cells(name):
        algorithm: Algorithm = build(cell.algo.target, cell.algo.options)
        first = facts.algorithm(cell.algo).warm_up + 1
        assert When.ASYNC in moments(algorithm, first)
        assert first == 1 or When.ASYNC not in moments(algorithm, first - 1)


@pytest.mark.parametrize("name", IN_STEPS)
def test_what_is_no_round_beside_the_steps_is_none(name: str) -> None:
    for cell in cells(name):
        algorithm: Algorithm = build(cell.algo.target, cell.algo.options)
        steps = range(1, facts.algorithm(cell.algo).warm_up + 10)
        assert not any(When.ASYNC in moments(algorithm, step) for step in steps)


def moved(comm: CountedComm, cell: Cell, steps: int) -> Tensor:
    """Weights before and after every step of length 1 along given gradients, behind the warm-up.

    The last ones alone would not do: an average that comes late enough makes up for all that were missed.
    """
    fact = facts.algorithm(cell.algo)
    places: list[Tensor] = []
    model = Shaped((8, 8)) if fact.needs_shapes else Linear(64)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=1.0), comm) as trainer:
        for step in range(fact.warm_up + steps):
            if step == fact.warm_up:
                start = place(trainer, model).flatten()
            trainer.module(gradient(comm.rank, step)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
            if step >= fact.warm_up:
                places.append(place(trainer, model).flatten())
    return torch.stack([start, *places])


def place(trainer: Trainer, model: Linear | Shaped) -> Tensor:
    """The weights, whole also where ranks keep a part of them."""
    with trainer.paused():
        return model.x.detach().clone()


@pytest.mark.parametrize("name", runnable())
def test_same_update_is_the_mean_of_all_gradients_but_for_rounding(name: str) -> None:
    """Within two quantisations to 8 bits of a gradient's range per step."""
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    first = facts.algorithm(cell.algo).warm_up
    if facts.algorithm(cell.algo).rounds:
        assert not facts.algorithm(cell.algo).same_update, "where it ends depends on when its rounds come"
        return
    mean = torch.stack([sum(gradient(r, first + k) for r in range(4)) / 4 for k in range(4)])
    level = max(float(gradient(r, first + k).max() - gradient(r, first + k).min()) for r in range(4) for k in range(4))
    results = run("gloo" if facts.algorithm(cell.algo).peer else "threads", 4, moved, cell, 4)
    wanted = torch.cat([torch.zeros(1, 64), -mean.cumsum(0)])
    same = all((places - places[0] - wanted).abs().max() <= 4 * 2 * level / 255 for places in results)
    assert same == facts.algorithm(cell.algo).same_update


def replicas(comm: CountedComm, cell: Cell) -> Tensor:
    task = Quadratic(lr=0.1)
    model = task.model()
    with make_trainer(cell, model, task.optimizer(model), comm) as trainer:
        for batch in islice(task.batches(comm.rank, comm.size, 0), 7):
            task.loss(trainer.module, batch).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return model().detach().clone()


@pytest.mark.parametrize("name", NAMES)
def test_replicas_are_equal_or_not_as_their_consensus_says(name: str) -> None:
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    first, *others = run("threads", 4, replicas, cell)
    assert all(torch.equal(first, other) for other in others) == facts.equal_replicas(cell.algo)


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_number_of_ranks_is_fine(name: str) -> None:
    run("threads", 3, traffic, resolved(f"algo={name}", "task=quadratic", *short(name)), 1)


@pytest.mark.parametrize("name", NAMES)
def test_who_regroups_may_differ_and_may_begin_anew(name: str) -> None:
    """It is a permission: an algorithm that could go on without a restart need not say so."""
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    algorithm: Algorithm = build(cell.algo.target, cell.algo.options)
    able = algorithm.consensus > 0 and set(algorithm.carry.values()) <= {Carry.ZERO}
    assert able or not facts.algorithm(cell.algo).regroups


def levels(comm: CountedComm, cell: Cell) -> set[str]:
    traffic(comm, cell, facts.algorithm(cell.algo).warm_up + 2 * facts.algorithm(cell.algo).period)
    model = Linear(64)
    engine = make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm)
    with engine:
        for step in range(facts.algorithm(cell.algo).warm_up + 2 * facts.algorithm(cell.algo).period):
            if step == facts.algorithm(cell.algo).warm_up:
                before = dict(engine.sent())
            engine.module(gradient(comm.rank, step)).backward()
            engine.synchronize()
            engine.optimize()
            engine.finish_step()
        return {level for level, sent in engine.sent().items() if sent > before[level]}


@pytest.mark.parametrize("name", IN_STEPS)
def test_by_server_is_where_it_sends(name: str) -> None:
    forms = declared(name).compare
    seen = set()
    for form in forms:
        cell = resolved(f"algo={name}", "task=quadratic", *short(name), *(f"algo.{option}" for option in form))
        found = run("threads", 4, levels, cell, per_server=2)[0]
        seen.add(facts.algorithm(cell.algo).by_server)
        assert ("flat" not in found) == facts.algorithm(cell.algo).by_server
    assert len(seen) == len(forms), "the forms worth comparing are alike"


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
        return model.x.detach().clone()


@pytest.mark.parametrize("name", IN_STEPS)
def test_a_step_that_may_be_skipped_leaves_no_trace(name: str) -> None:
    """Where replicas are equal. Elsewhere the weights are averaged in the step all the same."""
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    if not facts.equal_replicas(cell.algo):
        assert facts.algorithm(cell.algo).skips_steps
        return
    taken, left_out = (run("threads", 2, skipped, cell, way) for way in (False, True))
    alike = all(torch.equal(a, b) for a, b in zip(taken, left_out, strict=True))
    assert alike == facts.algorithm(cell.algo).skips_steps


class Shaped(nn.Module):
    """The same elements as a matrix or as a vector."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).view(*shape))

    def forward(self, g: Tensor) -> Tensor:
        return self.x.flatten() @ g


def shaped(comm: CountedComm, cell: Cell, shape: Sequence[int]) -> Tensor:
    model = Shaped(shape)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        for step in range(facts.algorithm(cell.algo).warm_up + 3):
            trainer.module(gradient(comm.rank, step)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return place(trainer, model).flatten()


@pytest.mark.parametrize("name", IN_STEPS)
def test_who_does_not_need_shapes_does_not_see_them(name: str) -> None:
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    matrix, vector = (run("threads", 2, shaped, cell, shape) for shape in ((8, 8), (64,)))
    alike = all(torch.equal(a, b) for a, b in zip(matrix, vector, strict=True))
    assert alike != facts.algorithm(cell.algo).needs_shapes


@pytest.mark.parametrize("name", NAMES)
def test_buckets_are_what_is_declared(name: str) -> None:
    """Two tensors that would go into buckets of their own."""
    cell = resolved(f"algo={name}", "task=quadratic", *short(name), "run.bucket_size=0B")
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    [comm] = ThreadComm.world(1)
    engine = make_trainer(cell, model, torch.optim.Adam(model.parameters()), comm)
    assert isinstance(engine, Engine)
    with engine:
        assert (len(engine.buckets) == 1) == (declared(name).buckets == "one")


def test_exactly_one_is_the_baseline_and_everybody_looks_different() -> None:
    known = [declared(name) for name in options("algo")]
    assert sum(fact.baseline for fact in known) == 1
    for looks in ("title", "colour", "marker"):
        assert len({getattr(fact, looks) for fact in known}) == len(known), looks


@pytest.mark.parametrize("name", options("task"))
def test_tasks_have_layers_where_they_say_so(name: str) -> None:
    fact = facts.task(resolved(f"task={name}").task)
    described = ["task.parameters=1e6"] * fact.described
    if fact.layers:
        assert layers_of(resolved(f"task={name}", *described).task).elements > 0


@pytest.mark.parametrize("name", options("algo"))
def test_what_was_learned_is_what_the_figure_shows(name: str) -> None:
    figure = HOME / "results" / "figures" / "learning.csv"
    rows = csv.DictReader(figure.read_text().splitlines() if figure.exists() else [])
    last = {row["algorithm"]: row for row in rows}  # of an algorithm's rows, in ascending order
    shown = [100 * float(last[name][key]) for key in ("top1", "top1_least", "top1_most")] if name in last else []
    assert list(declared(name).learned) == pytest.approx(shown, abs=0.05)


def test_variants_send_what_the_baseline_sends_in_as_many_pieces() -> None:
    layers = layers_of(resolved("task=vgg16", "mode=simulate").task)
    variants = [name for name in options("algo") if declared(name).variant_of]
    assert {declared(name).variant_of for name in variants} == {facts.baseline()}
    for name in variants:
        parts = [resolved(f"algo={each}").algo for each in (facts.baseline(), name)]
        programs = [build(part.target, part.options).program(layers, 2, 1, 1) for part in parts]
        pieces = [[item for item in program.steps[0] if isinstance(item, Submit)] for program in programs]
        assert len(pieces[0]) == len(pieces[1]) > 1


def test_a_missing_or_wrong_declaration_is_one_line() -> None:
    algo = resolved("algo=bytegrad").algo
    for about, message in (
        (None, "about: is missing"),
        ({"title": "x"}, r"about\.same_update is missing"),
        ({"title": "x", "same_update": True, "line_share": 0.5}, r"about\.line_share=0\.5: belongs in the class"),
        ({"title": "x", "same_update": True, "sync_every": 8}, r"about\.sync_every=8: no such key; allowed: title"),
        ({"title": "x", "same_update": "yes"}, r"about\.same_update=yes: expected bool"),
    ):
        with pytest.raises(ValueError, match=f"conf/algo/bytegrad.yaml: {message}"):
            facts.algorithm(replace(algo, about=about))


KEPT = 2**14
"""Elements of the model whose memory is looked at: whatever has fewer than half as many is no state."""


def storages() -> dict[int, torch.UntypedStorage]:
    """The storages of all large tensors alive in this process, by address. Whoever holds them keeps others from it."""
    gc.collect()
    found = [x.untyped_storage() for x in gc.get_objects() if isinstance(x, Tensor) and x.device.type == "cpu"]
    return {storage.data_ptr(): storage for storage in found if storage.nbytes() >= KEPT // 2}


def kept(comm: CountedComm, cell: Cell) -> float:
    """Bytes of all ranks, which are threads, beyond weights, gradients and optimizer, over those of one's weights."""
    before = storages() if comm.rank == 0 else {}
    comm.barrier()
    model = Linear(KEPT)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        for step in range(facts.algorithm(cell.algo).warm_up + 2):
            trainer.module(gradient(comm.rank, step, KEPT)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        trainer.module(gradient(comm.rank, step, KEPT)).backward()  # the gradients are there
        trainer.synchronize()
        moments = [x for state in trainer.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        with trainer.paused():
            comm.barrier()
            after = storages() if comm.rank == 0 else {}
            comm.barrier()
        trainer.optimize()
        trainer.finish_step()
    new = sum(storage.nbytes() for address, storage in after.items() if address not in before)
    own = 2 * 4 * KEPT + sum(x.nbytes for x in moments if x.nbytes >= KEPT // 2)
    return (new - comm.size * own) / (4 * KEPT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 4])
def test_the_declared_state_is_what_ranks_keep(name: str, size: int) -> None:
    """A codec keeps room for one coded bucket, a quarter of the only one here: that is none of the state."""
    cell = resolved(f"algo={name}", "task=quadratic", *short(name))
    found = run("threads", size, kept, cell)[0]
    declared_ = facts.algorithm(cell.algo).state_bytes(size, size)
    assert declared_ - 0.01 < found < declared_ + 0.26 * size
