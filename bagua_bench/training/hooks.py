"""What the engine hangs on a user's model and optimizer, so that it hears of forward passes, gradients and steps."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class ForwardHook:
    """Calls `begins()` before every training forward of a model; nothing in copies of the model and in files."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self._begins = weakref.WeakMethod(begins)

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if torch.compiler.is_dynamo_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        begins = self._begins()
        if begins is not None:
            begins()

    def __reduce__(self) -> Any:
        """A copy is `{}.get`, which as a hook hands the inputs through, and which unpickles without this package."""
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


def on_gradients(params: list[Parameter], ready: Callable[[Tensor], None]) -> list[RemovableHandle]:
    """Call `ready(p)` whenever a backward pass has accumulated into p.grad."""
    return [p.register_post_accumulate_grad_hook(ready) for p in params]


def refuse_closures(optimizer: Optimizer) -> None:
    """ValueError for an optimizer that evaluates the model within its step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer={type(optimizer).__name__}: it needs a closure, which Engine.step() cannot give it"
        )


def forbid_steps(optimizer: Optimizer, allowed: Callable[[], bool]) -> RemovableHandle:
    """Have the optimizer's own `step()` raise where it is not allowed: communication would be left out."""

    def check(*_: object) -> None:
        if not allowed():
            raise RuntimeError(
                "call engine.step() instead of optimizer.step(): it communicates and steps the optimizer"
            )

    return optimizer.register_step_pre_hook(check)
