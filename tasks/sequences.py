"""Tasks whose samples are sequences: all of one length, or a data set with a realistic spread of lengths."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from tasks.base import Batch, Position, Task
from tasks.loading.balanced import (
    BatchFunction,
    DistributedIndices,
    LoadBalancedBatchSampler,
    LoadBalancedSampler,
    in_order,
    of_similar_length,
)

_DATA_SEED = 2021
"""Of the generated data sets. Which data there is does not depend on `run.seed`, only its order does."""

Sample = tuple[Tensor, ...]


@dataclass(frozen=True)
class Spread:
    """Lengths that are log-normal around `median`, rounded and clipped to [least, most]."""

    median: float
    sigma: float
    least: int
    most: int

    def lengths(self, number: int, seed: int) -> Tensor:
        """So many lengths: (number,), int64."""
        generator = torch.Generator().manual_seed(seed)
        drawn = self.median * torch.exp(self.sigma * torch.randn(number, generator=generator))
        return drawn.round().long().clamp(self.least, self.most)


class Sequences(Dataset[Sample]):
    """Generated samples; each is a function of its index alone, so that it is the same in every epoch."""

    def __init__(self, task: SequenceTask, lengths: Tensor) -> None:
        self._task, self._lengths = task, lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(_DATA_SEED + 1 + index)
        return self._task.sample(int(self._lengths[index]), generator)


class SequenceTask(Task):
    """A task on generated sequences.

    sampler: None: an endless stream of samples that are all equally long. Otherwise a data set of `samples` generated
    samples (None: as many as the published one), whose lengths have a `Spread`; a rank gets its share of each epoch
    from torch's DistributedSampler (random) or from the `LoadBalancedSampler` (balanced). Batches are padded to their
    longest sample.
    batching: samples of a batch as the sampler gives them (mixed), or of similar length.
    """

    synthetic = True

    def __init__(
        self,
        batch: int,
        published: int,
        spread: Spread,
        sampler: Literal["random", "balanced", None],
        batching: Literal["mixed", "similar"],
        samples: int | None,
    ) -> None:
        self.batch, self._spread, self._sampler, self._batching = batch, spread, sampler, batching
        self.samples_per_epoch = published if samples is None else samples

    @abstractmethod
    def alike(self, number: int, generator: torch.Generator) -> Batch:
        """So many samples of the task's one length, as a batch."""

    @abstractmethod
    def sample(self, length: int, generator: torch.Generator) -> Sample:
        """One sample of a length."""

    @abstractmethod
    def padded(self, samples: Sequence[Sample]) -> Batch:
        """Samples as a batch, padded to the longest one."""

    @abstractmethod
    def multiply_adds(self, length: int | None) -> float:
        """Of the forward pass of one sample of a length (None: the task's one length)."""

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        return self.resumed(rank, size, seed, Position())

    def resumed(self, rank: int, size: int, seed: int, begin: Position) -> Iterator[Batch]:
        """Of a stream, batches that did not come before."""
        if self._sampler is None:
            number = begin.epoch * self.samples_per_epoch + begin.number(self.samples_per_epoch)
            generator = torch.Generator().manual_seed(1_000_003 * (seed + 7_919 * number) + rank + 1)
            while True:
                yield self.alike(self.batch, generator)
        if begin != Position():
            raise ValueError(f"task.sampler={self._sampler}: cannot begin in mid-epoch; allowed: null")
        data = self.dataset()
        for indices in self._indices(size, seed):
            yield self.padded([data[i] for i in indices[rank]])

    def dataset(self) -> Dataset[Sample]:
        """The samples that batches are made of, where there is a sampler."""
        return Sequences(self, self._lengths)

    def about_data(self) -> dict[str, Any]:
        """What each sample of the data set depends on, besides its index."""
        return {"seed": _DATA_SEED, "samples": self.samples_per_epoch, **asdict(self._spread)}

    def typical(self) -> Batch:
        return self.alike(self.batch, torch.Generator().manual_seed(1))

    def work(self, size: int, seed: int) -> Iterator[tuple[float, ...]] | None:
        return None if self._sampler is None else self._work(size, seed)

    def held_out(self, number: int) -> Batch:
        """So many samples that are in no epoch, as one batch."""
        if self._sampler is None:
            return self.alike(number, torch.Generator().manual_seed(0))
        lengths = self._spread.lengths(number, _DATA_SEED - 1)
        generator = torch.Generator().manual_seed(_DATA_SEED - 1)
        return self.padded([self.sample(length, generator) for length in lengths.tolist()])

    @cached_property
    def _lengths(self) -> Tensor:
        return self._spread.lengths(self.samples_per_epoch, _DATA_SEED)

    def _work(self, size: int, seed: int) -> Iterator[tuple[float, ...]]:
        usual, lengths = self.multiply_adds(None), self._lengths
        known = {length: self.multiply_adds(length) / usual for length in lengths.unique().tolist()}
        for ranks in self._indices(size, seed):
            longest = lengths[torch.tensor(ranks)].max(1).values
            yield tuple(known[length] for length in longest.tolist())

    def _indices(self, size: int, seed: int) -> Iterator[tuple[list[int], ...]]:
        """The samples of every rank's batch, batch after batch, epoch after epoch. ValueError if there are too few."""
        if self.samples_per_epoch < size * self.batch:
            raise ValueError(
                f"task.samples={self.samples_per_epoch}: {size} ranks x task.batch={self.batch} need at least "
                f"{size * self.batch}"
            )
        batches = LoadBalancedBatchSampler(self._sampler_of(size, seed), self._cut())
        for epoch in count():
            batches.set_epoch(epoch)
            yield from zip(*batches.batches(), strict=True)

    def _sampler_of(self, size: int, seed: int) -> DistributedIndices:
        data = Sequences(self, self._lengths)
        if self._sampler == "random":
            return DistributedSampler(data, size, 0, seed=seed)
        return LoadBalancedSampler(data, self._lengths, size, 0, seed=seed)

    def _cut(self) -> BatchFunction:
        if self._batching == "mixed":
            return in_order(self.batch)
        return of_similar_length(self._lengths.tolist(), self.batch)


def log_normal_median(mean: float, sigma: float) -> float:
    """The median of a log-normal distribution with this mean."""
    return mean / math.exp(sigma**2 / 2)
