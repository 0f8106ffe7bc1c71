"""Hooks on a user's model and optimizer by which the engine hears of forward passes, gradients and steps."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class ForwardHook:
    """Calls `begins()` before every training forward of a model; does nothing in copies of the model and in files."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self._begins = weakref.WeakMethod(begins)

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if torch.compiler.is_dynamo_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        begins = self._begins()
        if begins is not None:
            begins()

    def __reduce__(self) -> Any:
        """Copy as `{}.get`, which as a hook hands the inputs through and unpickles without this package."""
        return (getattr, ({}, "get"))


class BackwardEnd:
    """Calls `ends(nested)` once at the end of a backward pass, if `expect` was called within it.

    nested: the pass was started by another's node, as reentrant checkpointing does; more gradients may follow.
    """

    def __init__(self, ends: Callable[[bool], None]) -> None:
        self._ends = ends
        self._expected = False

    def expect(self) -> None:
        """Call `ends` when the pass under way is over."""
        if not self._expected:
            self._expected = True
            Variable._execution_engine.queue_callback(self._over)

    def forget(self) -> None:
        """The pass under way has failed: it has no end."""
        self._expected = False

    def _over(self) -> None:
        self._expected = False
        self._ends(torch._C._current_autograd_node() is not None)


class GradientHooks:
    """Calls `ready(p)` whenever a backward pass has accumulated into p.grad, behind all other hooks of p.

    Hooks on the parameter itself run in the order of registration: one that a user adds later would change gradients
    that are being sent. Those of the autograd node that accumulates come after them.
    """

    def __init__(self, params: Iterable[Parameter], ready: Callable[[Parameter], None]) -> None:
        with torch.enable_grad():
            self._nodes: list[Any] = [p.view_as(p).grad_fn.next_functions[0][0] for p in params]  # type: ignore[union-attr]
        self._handles = [
            node.register_hook(partial(_ready, ready, p)) for node, p in zip(self._nodes, params, strict=True)
        ]

    def remove(self) -> None:
        """Stop calling `ready`."""
        for handle in self._handles:
            handle.remove()


def _ready(ready: Callable[[Parameter], None], p: Parameter, *_: object) -> None:
    ready(p)


def check_optimizers(given: object) -> list[Optimizer]:
    """One or several optimizers as a list. ValueError for any other object, or one whose step evaluates the model."""
    optimizers = [given] if isinstance(given, Optimizer) else list(given) if isinstance(given, list | tuple) else []
    if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
        raise ValueError(f"optimizer: a {type(given).__name__}; expected a torch.optim.Optimizer, or a list of them")
    for each in optimizers:
        closure = inspect.signature(type(each).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(f"optimizer={type(each).__name__}: it needs a closure, which Engine.step() cannot give it")
    return optimizers


def forbid_steps(optimizer: Optimizer, allowed: Callable[[], bool]) -> RemovableHandle:
    """Make the optimizer's own `step()` raise where it is not allowed: communication would be left out."""

    def check(*_: object) -> None:
        if not allowed():
            raise RuntimeError("call engine.step() instead of optimizer.step(): it communicates, too")

    return optimizer.register_step_pre_hook(check)
