"""Several buckets under way at a time: the same results, in less time where latency is high."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from algorithms.base import Bucket, Comm, Turn, When
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine.engine import Engine
from bagua_bench.machine.program import Collective, Traffic
from bagua_bench.simulate.lanes import Lanes
from bagua_bench.simulate.run import simulate
from bagua_bench.worker.build import make_trainer
from tasks.quadratic import Quadratic
from tests.catalogue import algorithms, declared, resolved, short
from tests.ranks import run

ALIKE = [name for name in algorithms() if not declared(name).rounds and not declared(name).peer]


def layers() -> nn.Module:
    model, chance = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), torch.Generator().manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3, generator=chance)
    return model


def trained(comm: CountedComm, cell: Cell) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Weights of all ranks and bytes sent, after 6 steps of a model of several buckets."""
    model = layers()
    with make_trainer(cell, model, Quadratic(lr=0.05).optimizer(model), comm) as trainer:
        chance = torch.Generator().manual_seed(comm.rank)
        for _ in range(6):
            model(torch.randn(4, 6, generator=chance)).square().mean().backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        sent = trainer.sent()
        if isinstance(comm, TorchComm) and (streams := comm.streams()) is not None:
            assert {len(own) for own in streams.values()} == {cell.run.channels * len(comm.group.report(1 - comm.rank))}
    return [p.detach().clone() for p in model.parameters()], sent


@pytest.mark.parametrize(("kind", "size", "per_server"), [("threads", 4, 2), ("gloo", 2, 1), ("bagua_net", 2, 1)])
@pytest.mark.parametrize("name", ALIKE)
def test_channels_change_neither_weights_nor_bytes(name: str, kind: str, size: int, per_server: int) -> None:
    layout = [f"cluster.servers={size // per_server}", f"cluster.ranks_per_server={per_server}"]
    base = resolved(f"algo={name}", "task=quadratic", "run.bucket_size=0B", *layout, *short(name))
    one, three = (
        run(kind, size, trained, replace(base, run=replace(base.run, channels=channels)), per_server=per_server)
        for channels in (1, 3)
    )
    for (weights, sent), (others, theirs) in zip(one, three, strict=True):
        assert all(map(torch.equal, weights, others))
        assert sent == theirs


class Crossing(GradientAllReduce):
    """The first bucket waits until the second one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        if bucket.name.endswith("1"):
            self.second.set()
        elif bucket.name.endswith("0"):
            assert self.second.wait(20), "the second bucket waits for the first"
        super().communicate(bucket, comm, step)


def crossing(comm: CountedComm, channels: int) -> None:
    model = layers()
    with Engine(
        model, torch.optim.SGD(model.parameters(), 0.1), Crossing(), comm, bucket_size=0, channels=channels
    ) as engine:
        model(torch.ones(1, 6)).sum().backward()
        engine.step()


def test_two_buckets_are_under_way_at_a_time() -> None:
    run("threads", 2, crossing, 2)


class Twice(GradientAllReduce):
    """Gradients, and weights after the step, of the same buckets: in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[str]] = {}

    def turns(self, step: int) -> tuple[Turn, ...]:
        return Turn(When.BACKWARD), Turn(When.STEP, communicate=self.weights)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        self.seen.setdefault(bucket.name, []).append("gradients")
        super().communicate(bucket, comm, step)

    def weights(self, bucket: Bucket, comm: Comm, step: int) -> None:
        self.seen.setdefault(bucket.name, []).append("weights")
        comm.all_reduce(bucket.weight)
        bucket.weight.div_(comm.size)


def twice(comm: CountedComm) -> dict[str, list[str]]:
    model, algorithm = layers(), Twice()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Engine(model, optimizer, algorithm, comm, bucket_size=0, channels=3) as engine:
        for _ in range(3):
            model(torch.ones(1, 6)).sum().backward()
            engine.step()
    return algorithm.seen


def test_turns_of_one_bucket_stay_in_order() -> None:
    for seen in run("threads", 2, twice):
        assert len(seen) == 8
        assert all(order == ["gradients", "weights"] * 3 for order in seen.values())


def joined(comm: CountedComm) -> int:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Engine(model, optimizer, GradientAllReduce(), comm, bucket_size=0, channels=2) as engine:
        for batch in engine.join([torch.ones(1, 6)] * (1 + 2 * comm.rank)):
            if batch is None:
                engine.give_up()
            else:
                model(batch).sum().backward()
            engine.step()
        return engine.steps


def test_what_all_ranks_decide_comes_behind_every_channel() -> None:
    assert run("threads", 2, joined) == [3, 3]


def with_own_number(comm: CountedComm, number: Any) -> None:
    model = layers()
    Engine(model, torch.optim.SGD(model.parameters(), 0.1), GradientAllReduce(), comm, channels=number or comm.rank + 1)


def test_all_ranks_have_the_same_number() -> None:
    with pytest.raises(ValueError, match=r"channels=[12]"):
        run("threads", 2, with_own_number, None)


def test_there_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="channels=-1: must be at least 1"):
        run("threads", 2, with_own_number, -1)


# -- under the virtual clock ------------------------------------------------------------------------------------------

A, B = Collective("all_reduce", 8, "flat"), Collective("all_reduce", 4, "flat")
WHOLE = {A: 10.0, B: 6.0}
"""Seconds; 2 of them latency."""


def lanes(channels: int) -> Lanes:
    def duration(op: Any, k: int) -> float:
        return op.nbytes * (k + 1) if isinstance(op, Traffic) else WHOLE[op]

    return Lanes([], channels, 2, duration, lambda op: WHOLE[op] - 2)


def test_latencies_pass_side_by_side_and_bytes_follow_each_other() -> None:
    found = lanes(2)
    found.submit([A], 0, [0.0, 1.0])
    found.submit([B], 1, [1.0, 1.0])
    assert found.wait(1) == [11.0, 11.0], "begins when both classes are there"
    assert found.wait(0) == [13.0, 13.0], "8 s of the other's bytes, then 4 s of its own"


def test_one_channel_works_through_one_after_the_other() -> None:
    found = lanes(1)
    found.submit([A, Traffic(3.0)], 0, [0.0, 0.0])
    found.submit([B], 0, [0.0, 0.0])
    assert found.wait(1) == [13.0, 16.0]
    assert found.wait(0) == [22.0, 22.0]


def test_an_operation_goes_before_another_that_was_submitted_earlier_and_begins_later() -> None:
    found = lanes(2)
    found.submit([Traffic(20.0), A], 0, [0.0, 0.0])  # A begins at 40
    found.submit([B], 1, [1.0, 1.0])
    assert found.left([0.0, 0.0]) == [(0, [50.0, 50.0]), (1, [7.0, 7.0])]
    assert found.end(0) == 50.0


def test_what_was_not_waited_for_is_left() -> None:
    found = lanes(2)
    found.submit([A], 0, [0.0, 0.0])
    found.submit([B], 1, [0.0, 0.0])
    found.wait(1)
    assert found.left([10.0, 11.0]) == [(1, [2.0, 1.0])], "8 s and 4 s of bytes: at 12"


SIZE = ("run.bucket_size=10MiB",)


def seconds(*overrides: str) -> float:
    result = simulate(
        resolved("mode=simulate", "task=bert_large", "cluster=bagua_paper", "run.steps=2", *SIZE, *overrides)
    )
    return result.ranks[0].seconds[-1]["step"]


@pytest.mark.parametrize("algo", ["gradient_allreduce", "bytegrad"])
@pytest.mark.parametrize("network", ["network.bandwidth=1gbit", "network.latency=5ms", "network.latency=1ms"])
def test_more_channels_are_never_slower_and_bytes_still_take_their_time(algo: str, network: str) -> None:
    times = [seconds(f"algo={algo}", network, "cluster.servers=4", f"run.channels={n}") for n in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    if "latency" in network:
        assert times[1] < 0.85 * times[0]
    else:
        assert times[2] > 0.9 * times[0]
