"""The optimizer of QAdam: Adam in its warm-up, then Adam with a frozen second moment (docs/algorithms.md, QAdam)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import StateDict
from torch.utils.hooks import RemovableHandle

from algorithms.base import Bucket


class QAdamOptimizer(Adam):
    """torch's Adam for `warmup_steps` steps; then x <- x - lr / (1 - beta1^t) m / (sqrt(v) / c + eps), v fixed.

    In the second stage m has been updated and averaged by the algorithm (`algorithms.qadam`) before the step; elements
    that had no gradient in the first (v = 0: dead units) then stay where they are. Weight decay is coupled, as Adam's,
    or decoupled, as AdamW's.
    stages: c = sqrt(1 - beta2^W) is "frozen" with v, or goes on growing ("drift"); step W, the last of "warmup",
    updates m and v as well, or step W - 1 is the last that does ("warmup_minus_one"); weight decay acts in "both"
    stages or in "warmup" only.
    """

    elementwise: ClassVar[bool] = True
    """Each element is updated by itself, so that parameters may be updated as one."""
    pins_state: ClassVar[bool] = True
    """The moments of a bucket have to stay where they lie."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        stages: tuple[str, str, str] = ("frozen", "warmup", "both"),
    ) -> None:
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps={warmup_steps}: must be at least 1")
        super().__init__(
            params, lr, betas, eps, weight_decay, foreach=False, decoupled_weight_decay=decoupled_weight_decay
        )
        self.warmup_steps = warmup_steps
        bias_correction, freeze_after, weight_decay_stage = stages
        self.drift = bias_correction == "drift"
        self.last_update = warmup_steps if freeze_after == "warmup" else max(1, warmup_steps - 1)
        self.decays_always = weight_decay_stage == "both"
        self.taken = 0
        """Steps taken, which determine the stage; the algorithm sets it, so that both are in the same stage."""
        self.replaced: Optimizer | None = None
        self._lrs: list[Any] = []  # of the replaced one, where they are not shared
        self._handles: list[RemovableHandle] = []
        self.flat: dict[str, tuple[Tensor, Tensor]] = {}
        """Both moments of a bucket, by its name."""

    @classmethod
    def instead_of(
        cls, optimizer: Optimizer, given: Mapping[str, Any], warmup_steps: int, stages: tuple[str, str, str]
    ) -> QAdamOptimizer:
        """Take an optimizer's place; those of the `given` hyper-parameters that are not None replace its own.

        An Adam or AdamW keeps groups and state, which are shared: schedules, `state_dict` and `load_state_dict` of it
        act on the new one. Of any other optimizer only the groups of parameters and a coupled weight decay mean the
        same here. ValueError for settings without meaning: options of Adam, a missing lr, a schedule of another lr.
        """
        name = type(optimizer).__name__
        given = {key: value for key, value in given.items() if value is not None}
        if type(optimizer) in (Adam, AdamW):
            own = cls(optimizer.param_groups, warmup_steps=warmup_steps, stages=stages)
            own._share(optimizer, given)
            return own
        if "lr" not in given:
            raise ValueError(
                f"optimizer={name}: its lr means nothing to QAdam; give Engine an Adam or AdamW, or QAdam(lr=...)"
            )
        if any("initial_lr" in group for group in optimizer.param_groups):
            raise ValueError(f"optimizer={name}: QAdam replaces it, and its schedule of lr; schedule an Adam or AdamW")
        if optimizer.defaults:
            said = ", ".join(f"{key}={value}" for key, value in given.items())
            warnings.warn(f"QAdam trains with an Adam of its own ({said}) instead of {name}", stacklevel=4)
        groups = [
            {key: group[key] for key in ("params", "weight_decay") if key in group} | given
            for group in optimizer.param_groups
        ]
        own = cls(groups, warmup_steps=warmup_steps, stages=stages)
        own.replaced, own._lrs = optimizer, [group.get("lr") for group in optimizer.param_groups]
        if optimizer.defaults:
            own._handles += [
                optimizer.register_state_dict_pre_hook(_refuse_state),
                optimizer.register_load_state_dict_pre_hook(_refuse_state),
            ]
        return own

    def _share(self, optimizer: Optimizer, given: Mapping[str, Any]) -> None:
        for group in optimizer.param_groups:
            for option in ("amsgrad", "maximize"):
                if group[option]:
                    raise ValueError(f"optimizer={type(optimizer).__name__}({option}=True): QAdam has no such thing")
            if "initial_lr" in group and given.get("lr", group["lr"]) != group["lr"]:
                raise ValueError(f"lr={given['lr']}: a schedule sets the optimizer's lr; leave QAdam's out")
            group.update(given)
        self.replaced = optimizer
        self._follow(optimizer)
        self._handles.append(optimizer.register_load_state_dict_post_hook(self._follow))

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load through the replaced optimizer if the state is shared with it."""
        if self.replaced is None or self._lrs:
            super().load_state_dict(state_dict)
        else:
            self.replaced.load_state_dict(state_dict)

    def _follow(self, optimizer: Optimizer) -> None:
        """Use the groups and the state of the replaced optimizer, the very same objects."""
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def release(self) -> None:
        """Leave nothing behind on the optimizer that was replaced."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def link(self, bucket: Bucket) -> None:
        """Keep both moments of the bucket's parameters flat, with the values that they have now.

        The second moment is at least float32: squares of gradients vanish in float16.
        """
        precise = torch.promote_types(bucket.weight.dtype, torch.float32)
        self.flat[bucket.name] = torch.zeros_like(bucket.weight), torch.zeros_like(bucket.weight, dtype=precise)
        self._adopt(bucket)

    def _adopt(self, bucket: Bucket) -> None:
        """Make every parameter's moments views of the flat ones; other tensors in their place were loaded."""
        groups = self._groups()
        views = zip(*(bucket.views(flat) for flat in self.flat[bucket.name]), strict=True)
        for p, (m, v) in zip(bucket.params, views, strict=True):
            if p not in groups:
                continue
            old = self.state[p]
            if not old:
                on_device = groups[p].get("fused") or groups[p].get("capturable")
                step = torch.zeros((), device=p.device if on_device else "cpu")
                self.state[p] = {"step": step, "exp_avg": m, "exp_avg_sq": v}
            elif old["exp_avg"].data_ptr() != m.data_ptr() or old["exp_avg"].shape != m.shape:
                self.state[p] = old | {"exp_avg": m.copy_(old["exp_avg"]), "exp_avg_sq": v.copy_(old["exp_avg_sq"])}

    def _groups(self) -> dict[Tensor, dict[str, Any]]:
        return {p: group for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def update_momentum(self, bucket: Bucket) -> Tensor:
        """m <- beta1 m + (1 - beta1) g with the betas and weight decay of each parameter's group; the flat m (N,)."""
        self._adopt(bucket)
        groups = self._groups()
        for p in bucket.params:
            if p not in groups:
                continue
            group, g = groups[p], p.grad
            if g is None:
                raise RuntimeError(f"the gradient of a parameter of shape {tuple(p.shape)} is gone before its use")
            if group["weight_decay"] and self.decays_always and not group["decoupled_weight_decay"]:
                g = g.add(p, alpha=group["weight_decay"])
            self.state[p]["exp_avg"].lerp_(g, 1 - group["betas"][0])
        return self.flat[bucket.name][0]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        self._heed_replaced()
        self.taken += 1
        if self.taken <= self.last_update:
            return super().step(closure)  # type: ignore[no-any-return]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._apply(p, group)
        return loss

    def _heed_replaced(self) -> None:
        """Let the schedule of the replaced optimizer know of the step. RuntimeError if it has no effect here."""
        if self.replaced is None:
            return
        self.replaced._opt_called = True  # type: ignore[attr-defined]  # or its schedule warns
        if self._lrs and self._lrs != [group.get("lr") for group in self.replaced.param_groups]:
            name = type(self.replaced).__name__
            raise RuntimeError(
                f"optimizer={name}: its lr was changed, but QAdam replaces it; schedule engine.optimizer"
            )

    def _apply(self, p: Tensor, group: dict[str, Any]) -> None:
        """The second stage. A parameter's `step` has stopped with v: it is how often v was updated."""
        state, lr, (beta1, beta2) = self.state[p], float(group["lr"]), group["betas"]
        updates = int(state["step"])
        if not updates:
            raise RuntimeError(
                f"a parameter of shape {tuple(p.shape)} has its first gradient after QAdam's warm-up of "
                f"{self.warmup_steps} steps and no second moment; choose a longer one, or call engine.restart()"
            )
        t = updates + self.taken - self.last_update
        frozen = t if self.drift else updates + self.warmup_steps - self.last_update
        v = state["exp_avg_sq"]
        denominator = (v.sqrt() / (1 - beta2**frozen) ** 0.5).add_(group["eps"])
        denominator.masked_fill_(v == 0, torch.inf)  # no gradient yet: one bit would make its m = 0 a huge step
        if group["weight_decay"] and self.decays_always and group["decoupled_weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        p.addcdiv_(state["exp_avg"], denominator, value=-lr / (1 - beta1**t))


def _refuse_state(optimizer: Optimizer, *_: object) -> None:
    name = type(optimizer).__name__
    raise RuntimeError(f"optimizer={name}: QAdam replaces it, so it has no state; save and load engine.optimizer")
