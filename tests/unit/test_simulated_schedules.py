"""The simulator does what real runs do: buckets, order, bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bagua_bench.configuration.cell import Cell
from bagua_bench.emulate.model import EmulatedModel
from bagua_bench.emulate.task import EmulatedTask
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Collective, Submit
from bagua_bench.peers.ddp import DDP
from bagua_bench.simulate.rehearsal import rehearse
from bagua_bench.simulate.run import _averaging, simulate
from bagua_bench.simulate.timing import Timing
from bagua_bench.worker.build import make_trainer
from tests.catalogue import declared, resolved, runnable
from tests.ranks import run
from tests.unit.test_emulate import Diary

ENGINE = [name for name in runnable() if not declared(name).peer]


def cell(*overrides: str) -> Cell:
    return resolved(
        "mode=simulate", "run.steps=2", "cluster=bagua_paper", "run.bucket_size=10MiB", "run.channels=1", *overrides
    )


@pytest.mark.parametrize(
    ("task", "algo", "messages"),
    [
        ("vgg16", "gradient_allreduce", 7),
        ("vgg16", "ddp", 6),
        ("bert_large", "gradient_allreduce", 73),
        ("bert_large", "ddp", 37),
        ("bert_large", "decentralized", 1),
    ],
)
def test_published_numbers_of_buckets(task: str, algo: str, messages: int) -> None:
    last = rehearse(cell(f"task={task}", f"algo={algo}")).steps[-1]
    assert len([item for item in last if isinstance(item, Submit)]) == messages


def rebuilt_buckets(comm: Any, layers: Layers, peer: DDP) -> list[int]:
    model = EmulatedModel(layers, Diary())
    with peer.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), comm) as trainer:
        for _ in range(3):
            trainer.module().backward()
        found = trainer.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
    return [int(size) for size in found.split(", ")]


@pytest.mark.parametrize(("shrink", "caps"), [(8, {}), (800, {"bucket_cap_mb": 0.25, "first_bucket_cap_mb": 0.01})])
def test_ddp_is_simulated_with_the_buckets_that_it_makes(shrink: float, caps: dict[str, float]) -> None:
    layers, peer = layers_of(cell("task=vgg16").task).shrunk(shrink), DDP(**caps)
    submitted = (item for item in peer.program(layers, 2, 1, 1).steps[-1] if isinstance(item, Submit))
    sizes = [op.nbytes for item in submitted for op in item.ops if isinstance(op, Collective)]
    assert len(sizes) > 2
    biases = 1e-3  # autograd gives a layer's weight and bias in an order of its own
    assert run("gloo", 1, rebuilt_buckets, layers, peer) == [pytest.approx(sizes, rel=biases)]


def test_bytegrad_does_what_the_paper_s_pseudo_code_says() -> None:
    program = rehearse(cell("task=vgg16", "algo=bytegrad"))
    job = next(item for item in program.steps[-1] if isinstance(item, Submit))
    calls = [op for op in job.ops if isinstance(op, Collective)]
    assert [(call.kind, call.level) for call in calls] == [
        ("reduce", "intra"),
        ("all_to_all", "inter"),
        ("all_gather", "inter"),
        ("broadcast", "intra"),
    ]
    assert calls[1].nbytes == pytest.approx(calls[0].nbytes / 4, rel=1e-3)


@pytest.mark.parametrize(("algo", "kind"), [("decentralized", "pairs"), ("low_precision_decentralized", "exchange")])
def test_who_meets_in_pairs_is_told_from_who_has_neighbours(algo: str, kind: str) -> None:
    program = rehearse(cell("task=vgg16", f"algo={algo}"))
    ops = [op for item in program.steps[-1] if isinstance(item, Submit) for op in item.ops]
    assert {op.kind for op in ops if isinstance(op, Collective) and op.level == "inter"} == {kind}


def really_sent(comm: Any, chosen: Cell, steps: int) -> dict[str, float]:
    task = EmulatedTask(chosen.task.batch, layers_of(chosen.task), Diary())
    model = task.model()
    with make_trainer(chosen, model, torch.optim.SGD(model.parameters(), lr=0.1), comm) as trainer:
        before = dict(trainer.sent())
        for _ in range(steps):
            task.loss(trainer.module, next(task.batches(0, 1, 0))).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return {key: (value - before[key]) / steps for key, value in trainer.sent().items()}


@pytest.mark.parametrize("per_server", [1, 2])
@pytest.mark.parametrize("name", [name for name in ENGINE if not declared(name).rounds])
def test_bytes_are_those_of_the_real_run(name: str, per_server: int) -> None:
    chosen = cell(
        "task=vgg16",
        "task.scale=tiny",
        f"algo={name}",
        f"cluster.servers={4 // per_server}",
        f"cluster.ranks_per_server={per_server}",
        "run.bucket_size=100kB",
    )
    simulated = simulate(chosen)
    real = run("threads", 4, really_sent, chosen, 2, per_server=per_server)
    kinds = [0] * 4 if per_server == 1 else [0, 1, 0, 1]  # leader, follower
    for rank, kind in zip(real, kinds, strict=True):
        expected = {key: value / 2 for key, value in simulated.ranks[kind].sent.items()}
        if rank["flat"] or name == "gradient_allreduce":
            assert rank == pytest.approx(expected)
        else:  # a tree's inner ranks forward more than its leaves
            assert rank["inter"] == pytest.approx(expected["inter"])


def test_a_peer_s_untimed_steps_are_not_among_its_steps() -> None:
    found = simulate(cell("task=vgg16", "algo=ddp", "run.steps=4", "run.untimed=1"))
    assert len(found.ranks[0].seconds) == 4


def test_horovod_without_a_cycle_sends_what_is_ready() -> None:
    """Where nobody has to be asked, either: the ranks of one server."""
    options = ("task=vgg16", "algo=horovod", "cluster.servers=1", "cluster.ranks_per_server=2")
    none, short = (simulate(cell(*options, f"algo.cycle_time={time}")) for time in ("0ms", "0.001ms"))
    took, expected = (found.ranks[0].seconds[-1]["step"] for found in (none, short))
    assert took == pytest.approx(expected, rel=1e-2)


def test_a_single_average_says_nothing_about_the_time_from_one_to_the_next() -> None:
    timing = Timing(rounds=1, round_seconds=0.5, staleness=1.0)
    assert _averaging(timing).round_seconds is None
    timing.rounds = 2
    assert _averaging(timing).round_seconds == 0.5
