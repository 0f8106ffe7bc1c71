"""An optimizer that only holds parameters."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

from torch.nn import Parameter
from torch.optim import Optimizer


class IdleOptimizer(Optimizer):
    """Its step does nothing unless it is replaced. It skips torch's set-up, which imports its compiler (2 s)."""

    def __init__(self, params: Iterable[Parameter]) -> None:
        self.defaults, self.state = {}, defaultdict(dict)
        self.param_groups = [{"params": list(params)}]
        self._optimizer_step_pre_hooks = OrderedDict()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = None
