"""An optimizer's step parameter by parameter, by torch's `foreach` and `fused`, and by `fuse`, in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.fused.known import ELEMENTWISE, refuse_unfit
from bagua_bench.fused.optimizer import fuse
from bagua_bench.overhead.accounts import WAYS

_WARM_UP = 3  # steps; state is made in the first and laid out in the second
_LR = 1e-5
_OPTIONS = {"SGD": {"momentum": 0.9}}
_SEED = 0

Shapes = list[tuple[int, ...]]
_TINY: Shapes = [(256,)] * 1000


def known(names: Sequence[str]) -> dict[str, Any]:
    """The classes that names or paths such as package.module.Class stand for; torch's if there are none.

    ValueError for one that is none, or that is not element-wise.
    """
    found = {}
    for name in names or ELEMENTWISE:
        try:
            kind = resolve_name(name if "." in name else f"torch.optim:{name}")
            refuse_unfit(kind([Parameter(torch.ones(1, 1))]))
        except (ImportError, AttributeError, TypeError):
            raise ValueError(
                f"--optimizers {name}: no such optimizer; allowed: {', '.join(ELEMENTWISE)}, or package.module.Class"
            ) from None
        found[name] = kind
    return found


def models(cells: Sequence[Cell]) -> dict[str, Shapes]:
    """The shapes of a model of 1,000 small tensors, and of the tasks' models; scales that have the same are one."""
    found: dict[str, Shapes] = {"1,000 small tensors": _TINY}
    for cell in cells:
        with torch.device("meta"):
            shapes = [tuple(p.shape) for p in build(cell.task.target, cell.task.options).model().parameters()]
        name, alike = f"{cell.task.name} {cell.task.scale}", [other for other, its in found.items() if its == shapes]
        if alike:
            found = {f"{other}, {cell.task.scale}" if other in alike else other: its for other, its in found.items()}
        else:
            found[name] = shapes
    return found


def alternate(cells: Sequence[Cell], names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """For every model and optimizer: the seconds of the steps, by way and round."""
    rows = []
    for model, shapes in models(cells).items():
        generator = torch.Generator().manual_seed(_SEED)
        params = [Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        for name, kind in known(names).items():
            optimizer: Optimizer = kind(params, lr=_LR, **_OPTIONS.get(name, {}))
            seconds = _in_turns(optimizer, rounds)
            size = sum(p.numel() for p in params)
            rows.append({"model": model, "optimizer": name, "tensors": len(params), "size": size, "seconds": seconds})
            del optimizer
            gc.collect()
    return rows


def _in_turns(optimizer: Optimizer, rounds: int) -> dict[str, list[float]]:
    """Seconds of every way's steps. In every round each takes one, in an order drawn for the round.

    All ways step the same parameters and go on with the same state: there is room for one only.
    """
    ways, drawn = _ways(optimizer), np.random.default_rng(_SEED)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(_WARM_UP + rounds):
        for k in drawn.permutation(len(ways)):
            way = list(ways)[int(k)]
            took = ways[way]()
            if number >= _WARM_UP:
                seconds[way].append(took)
    return seconds


def _ways(optimizer: Optimizer) -> dict[str, Callable[[], float]]:
    """Takes a step in each of the ways that the optimizer has; each returns its seconds."""
    ours = fuse(optimizer)
    has = [key for key in ("foreach", "fused") if key in optimizer.defaults]

    def timed(step: Callable[[], Any], *on: str) -> Callable[[], float]:
        def take() -> float:
            for group in optimizer.param_groups:
                group.update({key: key in on for key in has})
            began = time.perf_counter()
            step()
            return time.perf_counter() - began

        return take

    plain, fused = timed(optimizer.step), timed(ours.step)
    found: dict[str, Callable[[], float]] = {
        "plain": plain,
        "again": plain,
        "ours": fused,
        **{key: timed(optimizer.step, key) for key in has},
    }
    assert found.keys() <= WAYS.keys()
    return found
