"""A model whose gradient is whatever the test wants."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """x in R^n, at first spread over [-1, 1]; forward(g) is the loss x . g, so its gradient is g."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.linspace(-1, 1, n))

    def forward(self, g: Tensor) -> Tensor:
        return self.x @ g
