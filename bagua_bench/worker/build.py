"""Makes the objects of a worker from a resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from algorithms.base import Algorithm
from bagua_bench.comm import CountedComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.engine.autotune import Autotune
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.engine.schedule import Perform, perform
from bagua_bench.engine.sizing import LEAST
from bagua_bench.engine.trace import Trace
from bagua_bench.engine.trainer import Trainer
from bagua_bench.fused.optimizer import fuse
from bagua_bench.peers.base import Peer


def make_trainer(
    cell: Cell,
    model: nn.Module,
    optimizer: Optimizer,
    comm: CountedComm,
    perform: Perform = perform,
    trace: Trace | None = None,
) -> Trainer:
    """A peer system, or the engine with an algorithm whose pieces are called through `perform`; collective.

    trace: where the engine's communication is noted.
    """
    if cell.run.fused_optimizer:
        optimizer = fuse(_without_kernels(optimizer))
    noting = {} if trace is None else {"lanes": trace.channels, "averaging": trace.averaging}
    trainer = _make(cell, model, optimizer, comm, perform, noting)
    if cell.run.precision == "fp16":
        trainer.scale = LossScale(next(model.parameters()).device)
    return trainer


def _without_kernels(optimizer: Optimizer) -> Optimizer:
    """The optimizer of a task's recipe, without torch's own fused kernels."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False
    return optimizer


def _autotune(cell: Cell) -> Autotune | None:
    """Samples of whole periods, behind the algorithm's warm-up."""
    asked, declared = cell.run.autotune, facts.algorithm(cell.algo)
    if asked is None:
        return None
    steps = declared.whole(asked.sample_steps)
    behind = max(asked.warmup_steps, declared.warm_up)
    return Autotune(asked.max_samples, steps, behind, cell.run.seed, asked.first, cell.shrink)


def _make(
    cell: Cell,
    model: nn.Module,
    optimizer: Optimizer,
    comm: CountedComm,
    perform: Perform,
    noting: Mapping[str, Any],
) -> Trainer:
    algo, run = cell.algo, cell.run
    component = build(algo.target, algo.options)
    if isinstance(component, Peer):
        return component.attach(model, optimizer, comm)
    if not isinstance(component, Algorithm):
        raise ValueError(f"algo._target_={algo.target}: neither an Algorithm nor a Peer")
    return Engine(
        model,
        optimizer,
        component,
        comm,
        bucket_size=run.bucket_size,
        least_bucket=int(LEAST / cell.shrink),
        channels=run.channels,
        overlap=run.overlap,
        find_unused_parameters=run.find_unused_parameters,
        autotune=_autotune(cell),
        perform=perform,
        shares_cores=cell.mode == "measure",
        **noting,
    )
