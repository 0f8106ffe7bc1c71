"""Which optimizers update every element by itself, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adamax", "Adadelta", "Adagrad")
"""Torch's own."""
_REASONS = {
    "LBFGS": "its step is made of inner products over all parameters, and evaluates the model several times",
    "Muon": "it orthogonalizes whole matrices",
    "SparseAdam": "it updates the rows that a sparse gradient names",
    "Adafactor": "it keeps means of rows and columns, and scales by the norm of a whole parameter",
}
"""Of torch's other optimizers."""


def refuse_unfit(optimizer: object) -> None:
    """ValueError, one line with the reason, for an optimizer whose parameters cannot be updated as one."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer: a {type(optimizer).__name__}; expected a torch.optim.Optimizer")
    kind = type(optimizer)
    name = kind.__name__
    if kind in {getattr(torch.optim, each, None) for each in _REASONS}:
        raise ValueError(f"optimizer={name}: it is not element-wise: {_REASONS[name]}; use it as it is")
    if not _is_elementwise(kind):
        raise ValueError(
            f"optimizer={name}: it is not known to be element-wise; if the update of each element needs nothing of "
            "the other ones, say elementwise = True in its class"
        )
    for number, group in enumerate(optimizer.param_groups):
        if group.get("fused"):
            raise ValueError(
                f"optimizer={name}(fused=True): group {number} has torch's own fused kernel, which rounds the last "
                "elements of a tensor differently; leave fuse() out, or say fused=False"
            )
        if group.get("differentiable"):
            raise ValueError(f"optimizer={name}(differentiable=True): its step is part of a graph; use it as it is")


def _is_elementwise(kind: type[Optimizer]) -> bool:
    """Torch's own, and classes that say so; a class that overrides `step` of one that says so has to say it again."""
    if kind in {getattr(torch.optim, each) for each in ELEMENTWISE}:
        return True
    says = next((each for each in kind.__mro__ if "elementwise" in vars(each)), None)
    return says is not None and bool(vars(says)["elementwise"]) and raw_step(says) is raw_step(kind)


def raw_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """The method `step` of a class without the hooks that torch wraps around it when the first instance is made."""
    step: Any = kind.step
    raw: Callable[[Optimizer], Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return raw
