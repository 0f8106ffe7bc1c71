"""`fuse`: an element-wise optimizer that updates few flat tensors instead of many parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from bagua_bench.fused.known import raw_step, refuse_unfit
from bagua_bench.fused.plan import Plan


class FusedOptimizer(Optimizer):
    """Steps of another optimizer, equal to its own to the last bit, on fewer and flat tensors.

    Groups, state, hooks and `state_dict` are the other's, up to date after every step, and schedules of either act on
    both: steps of the two may alternate. Weights stay where they are in memory; the state of small parameters moves.
    """

    unfused: Optimizer
    """The other optimizer; its own `step` updates parameter by parameter."""

    def __init__(self, optimizer: Optimizer) -> None:  # torch's set-up is for parameters of its own
        self.unfused, self._plan = optimizer, None
        self.defaults = optimizer.defaults
        shared = {name: value for name, value in vars(optimizer).items() if name.startswith("_optimizer_")}
        self.__dict__.update(shared)  # the hooks
        self._patch_step_function()

    _plan: Plan | None

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The other's groups."""
        return self.unfused.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The other's state."""
        return self.unfused.state

    @property
    def tensors(self) -> int | None:
        """How many tensors stood for the parameters in the last step."""
        return None if self._plan is None else self._plan.tensors

    @property
    def _opt_called(self) -> bool:
        """Whether a step was taken, for schedules."""
        return bool(getattr(self.unfused, "_opt_called", False))

    @_opt_called.setter
    def _opt_called(self, value: bool) -> None:
        self.unfused._opt_called = value  # type: ignore[attr-defined]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take the step. RuntimeError of the other optimizer where it raises one, as for sparse gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._opt_called = True
        with torch.no_grad():
            if self._plan is None or not self._plan.fits(self.unfused):
                self._plan = None  # frees it before there is another
                self._plan = Plan(self.unfused)
            with self._plan.in_place(self.unfused):
                raw_step(type(self.unfused))(self.unfused)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.unfused.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.unfused.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.unfused.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.unfused.load_state_dict(dict(state_dict))

    def __getattr__(self, name: str) -> Any:
        if name == "unfused":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.unfused, name)

    def __reduce__(self) -> Any:
        return fuse, (self.unfused,)

    def __repr__(self) -> str:
        return f"fuse({self.unfused!r})"


def fuse(optimizer: Optimizer) -> FusedOptimizer:
    """Return an optimizer that takes the steps of `optimizer` faster: where parameters are small, many at a time.

    Use it in the place of `optimizer`, also as an argument of `Engine`. ValueError, one line with the reason, for one
    that is not element-wise, and where torch's own fused kernel is at work.
    """
    if isinstance(optimizer, FusedOptimizer):
        return optimizer
    refuse_unfit(optimizer)
    return FusedOptimizer(optimizer)


def replaced(given: Optimizer, choose: Callable[[Optimizer], Optimizer]) -> Optimizer:
    """What `choose` takes in the place of an optimizer; fused if the given one is."""
    if not isinstance(given, FusedOptimizer):
        return choose(given)
    chosen = choose(given.unfused)
    return given if chosen is given.unfused else fuse(chosen)


def unfused(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose steps a fused one takes; any other is returned as it is."""
    return optimizer.unfused if isinstance(optimizer, FusedOptimizer) else optimizer
