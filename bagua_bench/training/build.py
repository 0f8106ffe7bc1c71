"""Makes the objects of a worker from a resolved configuration."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn
from torch.optim import Optimizer

from algorithms.base import Algorithm
from bagua_bench.comm import CountedComm
from bagua_bench.peers.base import Peer
from bagua_bench.signature import SUITE_KEYS
from bagua_bench.training.engine import Engine
from bagua_bench.training.loss_scale import LossScale
from bagua_bench.training.trainer import Trainer


def build(node: dict[str, Any]) -> Any:
    """Instantiate `_target_` with the node's other keys, but for those that are the suite's."""
    module, _, name = node["_target_"].rpartition(".")
    arguments = {key: value for key, value in node.items() if key not in SUITE_KEYS}
    return getattr(import_module(module), name)(**arguments)


def make_trainer(
    config: dict[str, Any], model: nn.Module, optimizer: Optimizer, comm: CountedComm, **options: Any
) -> Trainer:
    """The engine with an algorithm, and `options` for it alone, or a peer system; collective."""
    component = build(config["algo"])
    trainer = _make(config, component, model, optimizer, comm, options)
    if config["run"]["precision"] == "fp16":
        trainer.scale = LossScale(next(model.parameters()).device)
    return trainer


def _make(
    config: dict[str, Any],
    component: object,
    model: nn.Module,
    optimizer: Optimizer,
    comm: CountedComm,
    options: dict[str, Any],
) -> Trainer:
    if isinstance(component, Peer):
        return component.attach(model, optimizer, comm)
    if not isinstance(component, Algorithm):
        raise ValueError(f"algo._target_={config['algo']['_target_']}: neither an Algorithm nor a Peer")
    run = config["run"]
    return Engine(
        model,
        optimizer,
        component,
        comm,
        bucket_size=run["bucket_size"],
        overlap=run["overlap"],
        find_unused_parameters=run["find_unused_parameters"],
        **options,
    )
