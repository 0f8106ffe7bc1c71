"""The optimizer of QAdam: Adam in its warm-up, then Adam with a frozen second moment (spec: algorithms 6.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from algorithms.base import Bucket


class QAdamOptimizer(Adam):
    """torch's Adam for `warmup_steps` steps; then x <- x - lr / (1 - beta1^t) m / (sqrt(v) / c + eps), v fixed.

    In the second stage m has been updated and averaged by the algorithm (`algorithms.qadam`) before the step; elements
    that had no gradient in the first (v = 0: dead units) then stay where they are.
    stages: how the two differ. c = sqrt(1 - beta2^W) is "frozen" with v, or goes on growing ("drift"); step W, the
    last of "warmup", updates m and v here, or it is the one before ("warmup_minus_one"); weight decay (coupled)
    acts in "both" or in "warmup" only.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        stages: tuple[str, str, str] = ("frozen", "warmup", "both"),
    ) -> None:
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps={warmup_steps}: must be at least 1")
        super().__init__(params, lr, betas, eps, weight_decay, foreach=False)
        self.warmup_steps = warmup_steps
        bias_correction, freeze_after, weight_decay_stage = stages
        self.drift = bias_correction == "drift"
        self.last_update = warmup_steps if freeze_after == "warmup" else warmup_steps - 1
        self.decays_always = weight_decay_stage == "both"

    def link(self, bucket: Bucket) -> None:
        """Keep both moments of the bucket's parameters in its state, flat, with the values that they have now.

        The second moment is at least float32: squares of gradients vanish in float16.
        """
        precise = torch.promote_types(bucket.weight.dtype, torch.float32)
        bucket.state["momentum"] = torch.zeros_like(bucket.weight)
        bucket.state["variance"] = torch.zeros_like(bucket.weight, dtype=precise)
        views = zip(bucket.views(bucket.state["momentum"]), bucket.views(bucket.state["variance"]), strict=True)
        for p, (m, v) in zip(bucket.params, views, strict=True):
            old = self.state[p] or {"step": torch.zeros(()), "exp_avg": m, "exp_avg_sq": v}
            self.state[p] = old | {"exp_avg": m.copy_(old["exp_avg"]), "exp_avg_sq": v.copy_(old["exp_avg_sq"])}

    @torch.no_grad()
    def update_momentum(self, bucket: Bucket) -> Tensor:
        """m <- beta1 m + (1 - beta1) g with the betas and weight decay of each parameter's group; the flat m (N,)."""
        group_of = {p: group for group in self.param_groups for p in group["params"]}
        for p in bucket.params:
            group, g = group_of[p], p.grad
            assert g is not None
            if group["weight_decay"] and self.decays_always:
                g = g.add(p, alpha=group["weight_decay"])
            self.state[p]["exp_avg"].lerp_(g, 1 - group["betas"][0])
        return bucket.state["momentum"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        first: dict[str, Any] = next(
            (self.state[p] for group in self.param_groups for p in group["params"] if p in self.state), {}
        )
        if int(first.get("step", 0)) < self.last_update:
            return super().step(closure)  # type: ignore[no-any-return]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._apply(p, group)
        return loss

    def _apply(self, p: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["step"] += 1
        t, (beta1, beta2) = int(state["step"]), group["betas"]
        frozen = t if self.drift else min(t, self.warmup_steps)
        v = state["exp_avg_sq"]
        denominator = (v.sqrt() / (1 - beta2**frozen) ** 0.5).add_(group["eps"])
        denominator.masked_fill_(v == 0, torch.inf)  # no gradient yet: one bit would make its m = 0 a huge step
        p.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / (1 - beta1**t))
