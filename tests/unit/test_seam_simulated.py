"""The seam in the other modes: the simulator charges what the engine does, and hides what lands later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from algorithms.codecs.base import Codec
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.cell import AlgoPart, Cell
from bagua_bench.emulate.emulation import Emulation
from bagua_bench.machine.compute import Compute, compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Collective, Phase, Program, Submit, Wait, Work
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import cluster_of
from bagua_bench.simulate.costs import seconds
from bagua_bench.simulate.run import simulate
from bagua_bench.worker.build import make_trainer
from tests.catalogue import resolved
from tests.ranks import run

PROOFS = {
    "diloco.DiLoCo": {"interval": 2},
    "streaming_diloco.StreamingDiLoCo": {"fragments": 2, "interval": 2, "delay": 1},
    "powersgd.PowerSGD": {"rank": 2},
    "exponential.Exponential": {},
    "top_k.TopK": {"k": 100},
}


def cell(name: str, *overrides: str, mode: str = "simulate", **options: Any) -> Cell:
    common = ["task=vgg16", "run.untimed=4", "run.steps=4", "cluster=4x1"]
    chosen = resolved(f"mode={mode}", *common, "network.bandwidth=1gbit", *overrides)
    about = {"title": name, "same_update": False}
    return replace(chosen, algo=AlgoPart(name, f"tests.proofs.{name}", options, about))


def really_sent(comm: CountedComm, chosen: Cell) -> dict[str, float]:
    """As in `mode=emulate`, with time that does not pass."""
    emulation = Emulation(chosen, comm.rank)
    model = emulation.task.model()
    made = make_trainer(chosen, model, emulation.task.optimizer(model), comm, emulation.perform)
    with made as trainer, emulation.attached(trainer):
        for number in range(chosen.run.untimed + chosen.run.steps):
            if number == chosen.run.untimed:
                before = trainer.sent()
            trainer.module().backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return {key: value - before[key] for key, value in trainer.sent().items()}


@pytest.fixture(autouse=True)
def codecs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulation puts something in their place, for the whole process."""
    monkeypatch.setattr(Codec, "stand_in", None)


@pytest.mark.parametrize("name", PROOFS)
def test_every_mode_sends_the_same_bytes(name: str) -> None:
    options = {**PROOFS[name]}
    tiny = ["task.scale=tiny", "task.step_seconds=1e-3", "run.bucket_size=100kB"]
    [simulated] = simulate(cell(name, *tiny, **options)).ranks
    for real in run("threads", 4, really_sent, cell(name, *tiny, mode="emulate", **options)):
        assert real == pytest.approx(simulated.sent) and real["flat"] > 0


def test_sums_of_8_bits_are_simulated() -> None:
    """Gradients of VGG16 over 1 Gbit/s: a quarter of the bytes, and of the time."""
    common = ["algo=gradient_allreduce", "cluster.servers=2", "cluster.ranks_per_server=1"]
    common += ["network.bandwidth=1gbit", "transport=bagua_net"]
    exact, lossy = (simulate(resolved("mode=simulate", *common, f"transport.wire={wire}")) for wire in ("null", "int8"))
    [before], [after] = exact.ranks, lossy.ranks
    assert after.sent["flat"] / before.sent["flat"] == pytest.approx(260 / 1024, rel=1e-3)
    times = [sum(step["communication"] for step in rank.seconds) for rank in (before, after)]
    assert 0.15 < times[1] / times[0] < 0.26, "and a part of it is hidden"


def mean_step(name: str, **options: Any) -> float:
    [rank] = simulate(cell(name, "run.steps=4", **options)).ranks
    return sum(step["step"] for step in rank.seconds) / len(rank.seconds)


def test_what_lands_later_is_hidden_as_long_as_it_fits() -> None:
    """A fragment of VGG16 takes two seconds on this network, and a step a seventh of one."""
    chosen = cell("diloco.DiLoCo")
    computing = compute_of(chosen, layers_of(chosen.task)).step
    name, common = "streaming_diloco.StreamingDiLoCo", {"fragments": 2, "interval": 4}
    waits = [mean_step(name, delay=delay, **common) for delay in (0, 1)]
    assert waits[1] < waits[0] and waits[1] > computing
    assert mean_step("diloco.DiLoCo", interval=4) >= waits[0] * 0.99


@pytest.mark.parametrize("delay", range(5))
def test_waiting_steps_later_is_waiting_for_the_rest(delay: int) -> None:
    """One collective of T, waited for so many steps of W later: the training thread waits for T - delay W, if any."""
    compute = Compute(forward=0.05, backward=0.04, optimizer=0.01, memory_bandwidth=1e9, origin="")
    cluster = cluster_of(cell("diloco.DiLoCo"))
    call = Collective("all_reduce", 20_000_000, "flat")
    work = (Phase("forward"), Work("forward", 1.0), Work("backward", 1.0), Work("optimizer", 1.0))
    steps = [[*work] for _ in range(6)]
    steps[0].append(Submit((call,)))
    steps[delay].append(Wait())
    timing = Clock(cluster, compute).run(Program(tuple(map(tuple, steps)), ({},), (1,)))
    taken = [step[0]["step"] for step in timing.steps]
    if delay:
        waited = max(0.0, seconds(call, cluster) - delay * compute.step)
        assert sum(taken) == pytest.approx(6 * compute.step + waited, rel=1e-9)
    else:
        assert taken[0] == pytest.approx(compute.step + seconds(call, cluster))


def test_a_wait_for_an_earlier_piece_leaves_the_later_ones_alone() -> None:
    compute = Compute(0.05, 0.04, 0.01, 1e9, "")
    cluster = cluster_of(cell("diloco.DiLoCo"))
    small, large = (Collective("all_reduce", nbytes, "flat") for nbytes in (1_000, 50_000_000))
    step = (Phase("forward"), Submit((small,)), Submit((large,)), Wait(behind=1))
    timing = Clock(cluster, compute).run(Program((step, (Phase("forward"), Wait())), ({},), (1,)))
    first, second = (one[0]["step"] for one in timing.steps)
    assert first == pytest.approx(seconds(small, cluster))
    assert first + second == pytest.approx(seconds(small, cluster) + seconds(large, cluster))


def test_a_group_of_ranks_is_charged_for_its_own_size() -> None:
    cluster = cluster_of(cell("diloco.DiLoCo"))
    pair, all_ = (Collective("all_reduce", 10**8, "flat", group=group) for group in ((2, 1), None))
    expected = cluster_of(cell("diloco.DiLoCo", "cluster.servers=2"))
    assert seconds(pair, cluster) == pytest.approx(seconds(Collective("all_reduce", 10**8, "flat"), expected))
    assert seconds(pair, cluster) < seconds(all_, cluster)
