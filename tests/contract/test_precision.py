"""run.precision=bf16|fp16: forward and loss under autocast, the rest float32; fp16 skips what overflows."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.loss_scale import GROWTH_INTERVAL, START, LossScale
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.loop import Loop
from tasks.bert_large import BertLarge
from tests.catalogue import declared, resolved, runnable, short
from tests.linear import Linear
from tests.ranks import run

SKIPPING = [name for name in runnable() if declared(name).skips_steps]
TOGETHER = [name for name in SKIPPING if facts.equal_replicas(resolved(f"algo={name}").algo)]
"""Replicas stay equal, so all skip what one cannot take."""
STEPS, BAD = 8, 3
FACTOR = 2.0**8  # START times a gradient is more than some systems can send: they cast it to float16


def losses(comm: CountedComm, precision: str) -> tuple[list[float], set[str], Tensor]:
    """Losses of four steps, dtypes of the linear layers' outputs, and the flat weights."""
    torch.manual_seed(3)
    task = BertLarge(scale="tiny", batch=4)  # no convolutions: on some processors float16 slows them a hundredfold
    model, seen = task.model(), set[str]()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, inputs, out: seen.add(str(out.dtype)))
    with Engine(model, task.optimizer(model), GradientAllReduce(), comm) as engine:
        engine.scale = LossScale(torch.device("cpu"), 2.0**8) if precision == "fp16" else None
        loop = Loop(engine, task, torch.device("cpu"), 1, lambda *args: None, precision=precision)
        assert all(bucket.grad.dtype == torch.float32 for bucket in engine.buckets)
        _, values = loop.take(islice(task.batches(comm.rank, comm.size, 0), 4), 4, "timed")
        return values, seen, torch.cat([bucket.weight for bucket in engine.buckets])


def all_losses(comm: CountedComm) -> list[tuple[list[float], set[str], Tensor]]:
    return [losses(comm, precision) for precision in ("fp32", "bf16", "fp16")]


def test_it_computes_in_half_precision_and_follows_float32() -> None:
    ranks = run("gloo", 2, all_losses)
    for (expected, single, _), *halves in ranks:
        assert single == {"torch.float32"}
        for (got, seen, weights), dtype in zip(halves, ("torch.bfloat16", "torch.float16"), strict=True):
            assert seen == {dtype}
            assert got == pytest.approx(expected, rel=0.05)
            assert got != expected
            assert weights.dtype == torch.float32
            assert torch.isfinite(weights).all()
    for one, other in zip(*ranks, strict=True):
        assert torch.equal(one[2], other[2]), "replicas differ"


def trained(comm: TorchComm, name: str, overflows: bool) -> tuple[Tensor, float, int]:
    """Weights, factor and steps skipped when rank 1 overflows in step BAD; without: float32 along what is left."""
    options = short(name) if declared(name).peer else []
    cell = resolved(f"algo={name}", "task=quadratic", f"run.precision={'fp16' if overflows else 'fp32'}", *options)
    model = Linear(50)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.05), comm) as trainer:
        if trainer.scale is not None:
            assert trainer.scale.factor == START
            trainer.scale = LossScale(torch.device("cpu"), FACTOR)
        for step in range(STEPS):
            gradient = torch.randn(50, generator=torch.Generator().manual_seed(100 * step + comm.rank))
            if step == BAD and not overflows and name in TOGETHER:
                continue
            if step == BAD and comm.rank == 1:
                gradient = torch.full((50,), 1e38) if overflows else torch.zeros(50)
            loss = trainer.module(gradient)
            (loss if trainer.scale is None else trainer.scale.scaled(loss)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
            time.sleep(0.02 if declared(name).rounds else 0)
        with trainer.paused():
            scale = trainer.scale or LossScale(torch.device("cpu"))
            return model.x.detach().clone(), scale.factor, scale.skipped


def everything(comm: TorchComm, names: list[str]) -> dict[str, list[tuple[Tensor, float, int]]]:
    return {name: [trained(comm, name, overflows) for overflows in (True, False)] for name in names}


def of_all_ranks() -> list[dict[str, list[tuple[Tensor, float, int]]]]:
    """What `trained` returns with an overflow and without, by rank and name."""
    once = [name for name in SKIPPING if facts.once_per_process(resolved(f"algo={name}").algo)]
    ranks: list[dict[str, Any]] = run("gloo", 2, everything, [n for n in SKIPPING if n not in once], timeout=60.0)
    for name in once:
        for overflows in (True, False):
            for own, found in zip(ranks, run("gloo", 2, trained, name, overflows), strict=True):
                own.setdefault(name, []).append(found)
    return ranks


def test_a_step_that_overflows_on_one_rank_is_one_that_was_not_taken() -> None:
    """By every rank where replicas are kept equal; elsewhere by the one that overflowed, as if its gradient were 0."""
    ranks = of_all_ranks()
    for name in SKIPPING:
        weights = [rank[name][0][0] for rank in ranks]
        assert all(torch.isfinite(x).all() for x in weights), name
        skipped = [1, 1] if name in TOGETHER else [0, 1]
        assert [rank[name][0][2] for rank in ranks] == skipped, name
        assert [rank[name][0][1] for rank in ranks] == [FACTOR / 2**count for count in skipped], name
        if name in TOGETHER:
            assert torch.equal(*weights), f"replicas of {name} differ"
        if not declared(name).rounds:  # they fall where they fall
            assert all(torch.equal(rank[name][0][0], rank[name][1][0]) for rank in ranks), name


def test_the_factor_moves_as_torch_s() -> None:
    scale, p = LossScale(torch.device("cpu")), torch.nn.Parameter(torch.ones(1))
    theirs, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([p], lr=0.0)
    bad = {0, 1, 5, 7, GROWTH_INTERVAL + 8}
    for step in range(2 * GROWTH_INTERVAL + 20):
        p.grad = torch.full((1,), torch.inf if step in bad else 1.0)
        theirs.scale(torch.ones(1))
        theirs.step(optimizer)
        theirs.update()
        p.grad = torch.full((1,), torch.nan if step in bad else 1.0)
        scale.unscale([p.grad])
        assert scale.accepts() is (step not in bad)
        assert scale.factor == theirs.get_scale(), step
    assert scale.skipped == len(bad)


def test_an_algorithm_that_cannot_skip_says_what_can_be_done() -> None:
    with pytest.raises(ConfigError, match=r"^run\.precision=fp16: algo=qadam .* allowed: fp32, bf16$"):
        validate(resolved("algo=qadam", "run.precision=fp16"))
    for name in SKIPPING:
        validate(resolved(f"algo={name}", "run.precision=fp16"))


@pytest.mark.parametrize("mode", ["emulate", "simulate"])
def test_machines_that_compute_nothing_have_no_precision(mode: str) -> None:
    cell: Cell = resolved(f"mode={mode}", "run.precision=bf16")
    with pytest.raises(ConfigError, match=r"run\.precision=bf16"):
        validate(cell)
