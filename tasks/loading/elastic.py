"""A sampler that begins in mid-epoch, with as many ranks as there are now (elastic training)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from tasks.base import Position
from tasks.loading.ranks import place

__all__ = ["ElasticSampler", "Position"]


class ElasticSampler(Sampler[int]):
    """Like `DistributedSampler` with `drop_last`, but an epoch can be continued by another number of ranks.

    The order of an epoch depends on seed and epoch alone. `set_epoch(epoch, seen)` leaves out its first `seen` samples
    and deals the others out in turn, so that the k-th batches of all ranks are always the next ones of the order: no
    sample is left out and none comes twice, nor where ranks were not in step (`shares`, see `Position`).
    What cannot be dealt out evenly at the end of the epoch is left out, as with `drop_last`; a `DataLoader` with
    `drop_last=True` leaves out what does not fill a batch on every rank.

    dataset: has a length. num_replicas, rank: of the default process group if left out.
    Raises ValueError, one line, for an argument that does not fit.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.num_replicas, self.rank = place(num_replicas, rank)
        self.shuffle, self.seed = shuffle, seed
        self._total: int = len(dataset)  # type: ignore[arg-type]
        self._begin = Position()

    def __len__(self) -> int:
        """Samples of this rank in the rest of the epoch."""
        return (self._total - self._begin.number(self._total)) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rest = self._begin.left(self._order())
        return iter(rest[self.rank :: self.num_replicas][: len(self)])

    def set_epoch(self, epoch: int, seen: int = 0, shares: tuple[tuple[int, ...], ...] = ()) -> None:
        """Choose the epoch, and what of it has been had (the parts of a `Position`); the same on all ranks."""
        begin = Position(epoch, seen, shares)
        begin.number(self._total)  # refuses what does not fit
        self._begin = begin

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self._total))
        generator = torch.Generator().manual_seed(self.seed + self._begin.epoch)
        order: list[int] = torch.randperm(self._total, generator=generator).tolist()
        return order
