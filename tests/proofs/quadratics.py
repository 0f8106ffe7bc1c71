"""Quadratics of several ranks, whose descent has closed-form steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.base import Algorithm
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine

RANKS, STEPS, LR = 4, 40, 0.1
A = 1 + ((np.arange(RANKS)[:, None] + np.arange(8)) % 4) / 4
C = np.sin(1 + 8 * np.arange(RANKS)[:, None] + np.arange(8))
OPTIMUM = (A * C).sum(0) / A.sum(0)
Make = Callable[[], Algorithm]


class Quadratics(nn.Module):
    """f_i(x) = 1/2 sum_j a_ij (x_j - c_ij)^2, a_ij = 1 + ((i + j) mod 4) / 4, c_ij = sin(1 + 8 i + j)."""

    def __init__(self, rank: int, parts: int = 1, shape: tuple[int, ...] = (-1,)) -> None:
        super().__init__()
        a, c = torch.from_numpy(A[rank]), torch.from_numpy(C[rank])
        self.a, self.c = [a[p::parts] for p in range(parts)], [c[p::parts] for p in range(parts)]
        zeros = [torch.zeros(8 // parts, dtype=torch.float64).view(shape) for _ in range(parts)]
        self.parts = nn.ParameterList([nn.Parameter(x) for x in zeros])

    def forward(self) -> Tensor:
        terms = [(a * (x.reshape(-1) - c).square()).sum() for a, x, c in zip(self.a, self.parts, self.c, strict=True)]
        return torch.stack(terms).sum() / 2


def descend(comm: CountedComm, make: Make, parts: int, shape: tuple[int, ...], settle: bool, size: int = 2**40) -> Any:
    model = Quadratics(comm.rank, parts, shape)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=LR), make(), comm, bucket_size=size) as engine:
        for _ in range(STEPS):
            engine.module().backward()
            engine.step()
        if settle:
            engine.settle()
        return torch.stack([x.detach().reshape(-1) for x in model.parts], dim=-1).flatten().numpy().copy()
