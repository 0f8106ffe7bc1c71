"""A model with real parameters and hooks whose layers take time instead of computing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
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

    The layers of an element of a list or a sequence run inside that module's call, so that hooks on it see them.
    Parameters have the names, shapes and order of the task's model, and are zero. Gradients are zero as well, or what
    the last step left in their memory: from the second step on, they are handed out where the trainer keeps them. No
    time is then spent on filling or copying memory that a GPU would have written.
    """

    def __init__(self, layers: Layers, pace: Pace, device: str = "cpu") -> None:
        super().__init__()
        self.pace = pace
        for name, shape in layers.params:
            self._register(name, Parameter(torch.zeros(shape, device=device)))
        names = [[layers.params[i][0] for i in layer.params] for layer in layers.layers]
        steps = [_Step(pace, [self._place(name) for name in own]) for own in names]
        for step, share in zip(steps, layers.shares(), strict=True):
            step.share = share
        steps[-1].is_last = True
        elements = [_element(own[0]) if own else "" for own in names]
        self._runs = [
            (self._part(path), [step for step, _ in run])
            for path, run in groupby(zip(steps, elements, strict=True), key=itemgetter(1))
        ]
        self._start = torch.zeros((), device=device, requires_grad=True)

    def forward(self, batch: Tensor | None = None) -> Tensor:
        """Run all layers; the result is a scalar zero. `batch` is ignored."""
        self.pace.begin("forward")
        hidden = self._start
        for part, steps in self._runs:
            hidden = through(hidden, steps) if part is None else part(hidden, steps)
        return hidden

    def _register(self, name: str, parameter: Parameter) -> None:
        *path, last = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, _Part())
            module = module.get_submodule(part)
        module.register_parameter(last, parameter)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        path, _, last = name.rpartition(".")
        return self.get_submodule(path), last

    def _part(self, path: str) -> nn.Module | None:
        return self.get_submodule(path) if path else None


class _Part(nn.Module):
    """A module of the task's model."""

    def forward(self, hidden: Tensor, steps: Sequence[_Step]) -> Tensor:
        return through(hidden, steps)


def through(hidden: Tensor, steps: Sequence[_Step]) -> Tensor:
    """What comes out of layers, one after the other."""
    for step in steps:
        hidden = _Layer.apply(hidden, step, *step.params())  # type: ignore[no-untyped-call]
    return hidden


def _element(parameter: str) -> str:
    """Path of the outermost module with a number for its name that holds a parameter; empty if there is none."""
    *path, _ = parameter.split(".")
    numbered = [place for place, part in enumerate(path, 1) if part.isdigit()]
    return ".".join(path[: numbered[0]]) if numbered else ""


class _Step:
    """One layer's parameters, its share of a pass, and where the trainer keeps its gradients."""

    share = 0.0
    is_last = False

    def __init__(self, pace: Pace, places: Sequence[tuple[nn.Module, str]]) -> None:
        self.pace, self._places = pace, places
        self._homes: list[Tensor | None] = [None] * len(places)
        self._hooks: GradientHooks | None = None

    def params(self) -> list[Parameter]:
        """The parameters that the modules have now: a trainer may replace them.

        The first time, it hooks them to note where every gradient is kept: behind the trainer's own hooks, which may
        move gradients.
        """
        found: list[Any] = [getattr(module, name) for module, name in self._places]
        if self._hooks is None:
            self._index = {p: index for index, p in enumerate(found)}
            self._hooks = GradientHooks(found, self._note)
        self._now = found
        return found

    def gradients(self) -> list[Tensor]:
        """Tensors that autograd takes over without a copy."""
        known = zip(self._homes, self._now, strict=True)
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
