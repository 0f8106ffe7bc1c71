"""Loss scaling for run.precision=fp16: small gradients vanish in float16, large ones overflow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

START, LEAST = 2.0**16, 1.0
GROWTH_INTERVAL = 2000  # steps without an overflow after which the factor doubles; an overflow halves it


class LossScale:
    """The factor on the loss of one rank; start, growth and backoff are the defaults of torch.amp.GradScaler.

    That one skips a step on the rank whose gradients overflowed, and looks at them after communication. Here a trainer
    looks before, as codecs refuse NaN and Inf, and has all ranks whose replicas are to stay equal skip together.
    The factor is no part of a checkpoint and outlives a restart after warm-up: it finds itself in a few skipped steps.
    """

    def __init__(self, device: torch.device, factor: float = START) -> None:
        self.factor = factor
        self.skipped = 0
        """Optimizer steps not taken because gradients overflowed."""
        self.overflow = torch.zeros(1, dtype=torch.uint8, device=device)
        """1 if a gradient of this step was not finite; a trainer reduces it over ranks that must agree."""
        self._good = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The scaled loss, on which to call `backward`."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the factor, in place; values that are not finite become 0 and are noted; no wait."""
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
            wrong = gradient.isfinite().logical_not_()
            gradient.masked_fill_(wrong, 0)
            self.overflow.bitwise_or_(wrong.any())

    def accepts(self) -> bool:
        """Whether the optimizer may take the step; moves the factor. On a GPU the host waits for the answer."""
        overflowed = bool(self.overflow.item())
        self.overflow.zero_()
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.skipped += 1
            self.factor = max(self.factor / 2, LEAST)
        elif self._good == GROWTH_INTERVAL:
            self._good = 0
            self.factor *= 2
        return not overflowed
