"""A convex problem with a different local optimum on every rank and a closed-form global one: the tests' oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tasks.base import Batch, Position, Task


class Point(nn.Module):
    """A point of R^n held in three parameters of unequal size; the forward pass returns it, whatever the input.

    FSDP2 needs one on a GPU, as it moves inputs there.
    """

    def __init__(self, dimensions: int, dtype: torch.dtype) -> None:
        super().__init__()
        cuts = torch.tensor_split(torch.zeros(dimensions, dtype=dtype), (dimensions // 2, dimensions // 2 + 3))
        self.parts = nn.ParameterList(nn.Parameter(part.clone()) for part in cuts)

    def forward(self, _: Tensor | None = None) -> Tensor:
        return torch.cat(list(self.parts))


class Quadratic(Task):
    """Rank r minimises 1/2 (x - c_r)' H_r (x - c_r), H_r symmetric with eigenvalues in [0.5, 1.5].

    The mean over ranks is least at (sum of H_r)^-1 (sum of H_r c_r). `scale` changes nothing.
    """

    synthetic = True
    samples_per_epoch = 1000

    def __init__(
        self,
        scale: Literal["paper", "cpu", "tiny"] = "tiny",
        batch: int = 1,
        dimensions: int = 32,
        dtype: Literal["float32", "float64"] = "float32",
        lr: float = 0.5,
    ) -> None:
        self.batch, self._dimensions, self._lr = batch, dimensions, lr
        self._dtype = getattr(torch, dtype)
        self._world = (1, 0)

    def model(self) -> nn.Module:
        return Point(self._dimensions, self._dtype)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self._lr)

    def problem(self, rank: int, seed: int) -> tuple[Tensor, Tensor]:
        """H (n, n) and c (n,) of a rank."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + rank)
        n = self._dimensions
        basis = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        values = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
        centre = torch.randn(n, generator=generator, dtype=torch.float64)
        return ((basis * values) @ basis.T).to(self._dtype), centre.to(self._dtype)

    def optimum(self, size: int, seed: int) -> Tensor:
        """The minimum of the mean over ranks, (n,), float64."""
        problems = [tuple(t.double() for t in self.problem(rank, seed)) for rank in range(size)]
        total = torch.stack([h for h, _ in problems]).sum(0)
        pull = torch.stack([h @ c for h, c in problems]).sum(0)
        found: Tensor = torch.linalg.solve(total, pull)
        return found

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        self._world = (size, seed)
        h, c = self.problem(rank, seed)
        while True:
            yield h.expand(self.batch, -1, -1), c.expand(self.batch, -1)

    def resumed(self, rank: int, size: int, seed: int, begin: Position) -> Iterator[Batch]:
        return self.batches(rank, size, seed)  # which are all alike

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        h, c = batch
        away = model(c) - c
        return 0.5 * torch.einsum("bi,bij,bj->b", away, h, away).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        optimum = self.optimum(*self._world)
        return {"distance": float((model().double().cpu() - optimum).norm() / optimum.norm())}
