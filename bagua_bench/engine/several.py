"""Several optimizers of one model, as one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer


class Several(Optimizer):
    """Steps all of them, in order. Groups, state and schedules stay theirs."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:  # torch's set-up is for parameters of its own
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}
        self._optimizer_step_pre_hooks = OrderedDict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
