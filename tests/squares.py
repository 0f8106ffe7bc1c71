"""A dataset that notes what it computes, in a module that new processes import quickly."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Squares(Dataset[tuple[Tensor, int]]):
    """Sample i is full of i squared. Every computation is a line in a file, also those of other processes."""

    def __init__(self, log: Path, count: int = 30, length: int = 50) -> None:
        self.log, self.count, self.length = log, count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.log.open("a") as stream:
            stream.write(f"{index}\n")
        return torch.full((self.length,), float(index**2)), index

    def computed(self) -> list[int]:
        """The indices that were computed, in ascending order."""
        return sorted(int(line) for line in self.log.read_text().split()) if self.log.exists() else []


def right(sample: tuple[Tensor, int], index: int, length: int = 50) -> bool:
    return sample[1] == index and torch.equal(sample[0], torch.full((length,), float(index**2)))
