"""A fused optimizer under an engine: the same weights to the last bit, on the buckets where they lie."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam_optimizer import QAdamOptimizer
from bagua_bench import fuse
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine.engine import Engine
from bagua_bench.fused import plan
from bagua_bench.fused.optimizer import FusedOptimizer
from bagua_bench.worker.build import make_trainer
from tests.catalogue import declared, resolved, runnable, short
from tests.habits import ALL, SYNCHRONOUS, Make, alone, data, fixed, loss, qadam, weights
from tests.ranks import run

Choice = Callable[[Optimizer], Optimizer]


def as_it_is(optimizer: Optimizer) -> Optimizer:
    return optimizer


def deep() -> nn.Sequential:
    """Small layers; the first weight is large enough to be cut (`pieces`)."""
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 5), nn.Tanh(), nn.Linear(5, 1))
    fixed(net)
    return net


pieces = patch.object(plan, "_PER_THREAD", 100)


def adam(net: nn.Sequential, by_two: bool) -> Optimizer:
    """With another group for biases, which lie between the weights."""
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
    return torch.optim.Adam(groups if by_two else net.parameters(), lr=0.01, foreach=False)


def trained(comm: CountedComm, make: Make, choose: Choice, by_two: bool) -> tuple[Tensor, int]:
    """Weights after twelve steps, with a schedule and buckets that are made anew, and how many tensors were updated."""
    net = deep()
    optimizer = choose(adam(net, by_two))
    schedule = StepLR(optimizer, 4, 0.5)
    with Engine(net, optimizer, make(), comm, bucket_size=200) as engine:
        for k in range(12):
            if k == 6:
                engine.plan.change(10**6, None, {})
                engine.rebuild()
            loss(net, data(comm.rank, k)).backward()
            engine.step()
            schedule.step()
        return weights(net), getattr(engine.optimizer, "tensors", 0)


@pytest.mark.parametrize("by_two", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("make", SYNCHRONOUS)
def test_every_algorithm_finds_the_same_weights(make: Make, by_two: bool) -> None:
    with pieces, warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = run("threads", 2, trained, make, as_it_is, by_two)
        results = run("threads", 2, trained, make, fuse, by_two)
    for (got, tensors), (wanted, _) in zip(results, expected, strict=True):
        assert torch.equal(got, wanted)
        assert tensors < 9 or (make is qadam and by_two), "two weights are five pieces, the other four are joined"


def test_averaging_beside_the_steps_goes_on() -> None:
    for got, _ in run("threads", 2, trained, ALL[-1], fuse, False):
        assert got.isfinite().all()


def copied(comm: CountedComm) -> int:
    net = deep()
    with Engine(net, fuse(torch.optim.SGD(net.parameters(), lr=0.1)), GradientAllReduce(), comm) as engine:
        loss(net, data(0, 0)).backward()
        with patch.object(torch, "_foreach_copy_") as first, patch.object(torch, "cat") as second:
            engine.step()
        assert isinstance(engine.optimizer, FusedOptimizer) and engine.optimizer.tensors == 1
        return int(first.call_count + second.call_count)


def test_what_lies_in_a_bucket_is_not_copied() -> None:
    assert copied(alone()) == 0


def test_two_optimizers_of_which_one_is_fused() -> None:
    def both(choose: Choice) -> Tensor:
        net = deep()
        first = choose(torch.optim.Adam(net[0].parameters(), lr=0.01, foreach=False))
        second = torch.optim.SGD(net[2:].parameters(), lr=0.1)
        with Engine(net, [first, second], GradientAllReduce(), alone()) as engine:
            for k in range(3):
                loss(net, data(0, k)).backward()
                engine.step()
        return weights(net)

    assert torch.equal(both(fuse), both(as_it_is))


def test_qadam_takes_over_the_optimizer_within_and_its_moments_stay_in_their_place() -> None:
    net = deep()
    given = fuse(torch.optim.Adam(net.parameters(), lr=0.01, foreach=False))
    with Engine(net, given, qadam(), alone()) as engine:
        own = engine.optimizer
        assert isinstance(own, FusedOptimizer) and isinstance(own.unfused, QAdamOptimizer)
        for k in range(6):
            loss(net, data(0, k)).backward()
            engine.step()
            [bucket] = engine.buckets
            moments, _ = own.flat[bucket.name]
            places = zip(bucket.params, bucket.views(moments), strict=True)
            assert all(own.state[p]["exp_avg"].data_ptr() == m.data_ptr() for p, m in places)
        assert own.tensors == 1
        assert given.state.keys() == {*net.parameters()}, "the given one has the state as well"


def test_the_fused_step_alone_is_refused_and_free_after_the_engine() -> None:
    net = deep()
    optimizer = fuse(torch.optim.SGD(net.parameters(), lr=0.1))
    with Engine(net, optimizer, GradientAllReduce(), alone()) as engine:
        loss(net, data(0, 0)).backward()
        for each in (optimizer, optimizer.unfused):
            with pytest.raises(RuntimeError, match=r"call engine\.step\(\)"):
                each.step()
        engine.step()
    loss(net, data(0, 1)).backward()
    optimizer.step()


def test_old_buckets_are_freed() -> None:
    net = deep()
    with Engine(net, fuse(torch.optim.SGD(net.parameters(), lr=0.1)), GradientAllReduce(), alone()) as engine:
        loss(net, data(0, 0)).backward()
        engine.step()
        [bucket] = engine.buckets
        memory = [x.untyped_storage()._weak_ref() for x in (bucket.weight, bucket.grad)]
        del bucket
        engine.rebuild()
        loss(net, data(0, 1)).backward()
        engine.step()
        gc.collect()
        assert all(torch.UntypedStorage._expired(weak) for weak in memory)
        for weak in memory:
            torch.UntypedStorage._free_weak_ref(weak)


def interrupted(comm: CountedComm, make: Make, folder: str, before: Choice, after: Choice) -> Tensor:
    """Six steps, a checkpoint, and six more in another engine with other buckets."""
    for number, choose in enumerate((before, after)):
        net = deep()
        with Engine(net, choose(adam(net, True)), make(), comm, bucket_size=10**6 if number else 200) as engine:
            if number:
                engine.load(folder)
            for k in range(6 * number, 6 * number + 6):
                loss(net, data(comm.rank, k)).backward()
                engine.step()
            if not number:
                engine.save(folder)
    return weights(net)


@pytest.mark.parametrize("make", [GradientAllReduce, qadam])
def test_checkpoints_go_from_fused_to_unfused_and_back(make: Make, tmp_path: Path) -> None:
    cases = {"plain": (as_it_is, as_it_is), "out of": (fuse, as_it_is), "into": (as_it_is, fuse), "both": (fuse, fuse)}
    found = {
        name: run("gloo", 2, interrupted, make, str(tmp_path / name), before, after)
        for name, (before, after) in cases.items()
    }
    for results in found.values():
        assert all(torch.equal(got, wanted) for got, wanted in zip(results, found["plain"], strict=True))


# -- run.fused_optimizer ---------------------------------------------------------------------------------------------


def through_a_cell(comm: CountedComm, cell: Cell) -> tuple[Tensor, str]:
    net = deep()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    if not cell.run.fused_optimizer:
        optimizer.param_groups[0]["fused"] = False
    with make_trainer(cell, net, optimizer, comm) as trainer:
        for k in range(6):
            loss(trainer.module, data(comm.rank, k)).backward()  # type: ignore[arg-type]
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        with trainer.paused():
            return weights(net), type(trainer.optimizer).__name__


@pytest.mark.parametrize("name", [name for name in runnable() if not declared(name).rounds])
def test_a_run_with_a_fused_optimizer_is_the_run_without(name: str) -> None:
    """Peers included; torch's own kernels, which a recipe may ask for, are off."""
    cells = [resolved(f"algo={name}", *short(name), *more) for more in ([], ["run.fused_optimizer=true"])]
    (plain, _), (fused, kind) = (run("gloo", 2, through_a_cell, cell)[1] for cell in cells)
    assert kind == "FusedOptimizer"
    assert torch.equal(plain, fused)


def test_the_key_is_written_only_where_it_is_on() -> None:
    off, on = resolved("algo=ddp"), resolved("algo=ddp", "run.fused_optimizer=true")
    assert "fused_optimizer" not in off.to_json()["run"] and on.to_json()["run"]["fused_optimizer"] is True
    assert off.id != on.id and Cell.from_json(copy.deepcopy(on.to_json())) == on
