"""A model with real parameters and hooks whose layers take time instead of computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from bagua_bench.engine.hooks import GradientHooks
from bagua_bench.machine.layers import Layers


class Pace(Protocol):
    """Lets time pass."""

    def begin(self, phase: str) -> None:
        """A pass (`forward` or `backward`) starts."""

    def work(self, phase: str, share: float) -> None:
        """Compute for a share of the pass."""

    def carry(self, load: float) -> None:
        """From now on passes take so many times their usual time."""


class EmulatedModel(nn.Module):
    """A chain of layers in the order of execution; gradients become ready layer by layer in the reverse order.

    Parameters have the names, shapes and order of the task's model, and are zero. Gradients are zero as well, or what
    the last step left in their memory: from the second step on, they are handed out where the trainer keeps them. No
    time is then spent on filling or copying memory that a GPU would have written.
    """

    def __init__(self, layers: Layers, pace: Pace, device: str = "cpu") -> None:
        super().__init__()
        self.pace = pace
        flat = [self._register(name, torch.zeros(shape, device=device)) for name, shape in layers.params]
        self._steps = [_Step(self, [flat[i] for i in layer.params]) for layer in layers.layers]
        for step, share in zip(self._steps, layers.shares(), strict=True):
            step.share = share
        self._steps[-1].is_last = True
        self._start = torch.zeros((), device=device, requires_grad=True)
        self._homes_known = False

    def forward(self, batch: Tensor | None = None) -> Tensor:
        """Run all layers; the result is a scalar zero. `batch` is ignored."""
        if not self._homes_known:  # after the trainer's own hooks, which may move gradients
            self._homes_known = True
            for step in self._steps:
                step.remember_gradients()
        self.pace.begin("forward")
        hidden = self._start
        for step in self._steps:
            hidden = _Layer.apply(hidden, step, *step.params)  # type: ignore[no-untyped-call]
        return hidden

    def _register(self, name: str, value: Tensor) -> Parameter:
        *path, last = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        parameter = Parameter(value)
        module.register_parameter(last, parameter)
        return parameter


class _Step:
    """One layer's parameters, its share of a pass, and where the trainer keeps its gradients."""

    share = 0.0
    is_last = False

    def __init__(self, model: EmulatedModel, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        self.pace = model.pace
        self._homes: list[Tensor | None] = [None] * len(self.params)
        self._index = {p: index for index, p in enumerate(self.params)}

    def remember_gradients(self) -> None:
        """Note where every gradient is kept, once the first backward pass and the trainer have put it there."""
        self._hooks = GradientHooks(self.params, self._note)

    def gradients(self) -> list[Tensor]:
        """Tensors that autograd takes over without a copy."""
        known = zip(self._homes, self.params, strict=True)
        return [_blank(p) if home is None else home.detach() for home, p in known]

    def _note(self, p: Parameter) -> None:
        index = self._index[p]
        if self._homes[index] is None and p.grad is not None and not p.is_meta:
            self._homes[index] = p.grad.detach()


def _blank(p: Parameter) -> Tensor:
    return p.new_empty(p.shape) if p.is_meta else torch.zeros_like(p)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, step: _Step, *params: Tensor) -> Tensor:
        ctx.step = step
        step.pace.work("forward", step.share)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        step: _Step = ctx.step
        if step.is_last:
            step.pace.begin("backward")
        step.pace.work("backward", step.share)
        return (gradient, None, *step.gradients())
