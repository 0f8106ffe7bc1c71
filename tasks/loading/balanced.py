"""Samplers that give all ranks samples of like work at the same time (Bagua's load-balanced data loading)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from tasks.loading.ranks import place

BatchFunction = Callable[[list[int]], Sequence[Sequence[int]]]
"""Cuts a rank's indices of an epoch, in the order of its sampler, into batches."""


class LoadBalancedSampler(Sampler[int]):
    """Like `DistributedSampler`, but the k-th samples of all ranks have nearly the same complexity, for every k.

    Samples are sorted by complexity and cut into groups of one per rank; groups come in random order. Who gets the
    heaviest sample of a group rotates from group to group (in Bagua it is always the last rank).

    dataset: has a length, and is read once here if `complexity` is a function.
    complexity: a function from a sample to an integer, or the integers themselves, one per sample.
    num_replicas, rank: of the default process group if left out.
    shuffle: another order in every epoch, see `set_epoch`; otherwise groups come in ascending order.
    drop_last: leave out up to num_replicas - 1 samples, other ones in every epoch, where they do not divide evenly;
        otherwise the lightest ones come twice.
    random_level: noise on complexities, as a share of their range: 0 balances best, 1 groups nearly at random.
    Raises ValueError, one line, for an argument that does not fit.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity: Callable[[Any], int] | Sequence[int] | Tensor,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0.0,
    ) -> None:
        self.num_replicas, self.rank = place(num_replicas, rank)
        if not 0 <= random_level <= 1:
            raise ValueError(f"random_level={random_level}: allowed: 0 to 1")
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        self._complexity = _complexities(dataset, complexity)
        spread = int(self._complexity.max() - self._complexity.min())
        self._noise = int(spread * random_level + 1)
        self._groups: tuple[int, Tensor] | None = None
        whole, rest = divmod(len(self._complexity), self.num_replicas)
        self._length = max(1, whole + (rest > 0 and not drop_last))

    def __len__(self) -> int:
        """Samples of this rank in an epoch, equal for all ranks; at least one."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.groups()[:, self.rank].tolist())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; call it before every epoch, with the same number on all ranks."""
        self.epoch = epoch

    def groups(self) -> Tensor:
        """Indices of all ranks in this epoch: (length, num_replicas), column r in rank r's order."""
        if self._groups is None or self._groups[0] != self.epoch:
            self._groups = self.epoch, self._grouped()
        return self._groups[1]

    def _grouped(self) -> Tensor:
        count, ranks, rows = len(self._complexity), self.num_replicas, len(self)
        order, work = torch.arange(count), self._complexity
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        if self.shuffle:
            work = work + torch.randint(self._noise, (count,), generator=generator)
            order = torch.randperm(count, generator=generator)  # ties, and what is left out, differ between epochs
        order = order[: rows * ranks]
        order = order[torch.argsort(work[order], stable=True)]
        copies = torch.arange(rows * ranks - len(order)) % len(order)  # of the lightest, beside them
        groups = order[torch.cat([copies, torch.arange(len(order))]).sort().values].view(rows, ranks)
        if self.shuffle:
            groups = groups[torch.randperm(rows, generator=generator)]
        turns = (torch.arange(ranks) + torch.arange(rows)[:, None]) % ranks
        return groups.gather(1, turns)


def _complexities(dataset: Dataset[Any], given: Callable[[Any], int] | Sequence[int] | Tensor) -> Tensor:
    count: int = len(dataset)  # type: ignore[arg-type]
    if count == 0:
        raise ValueError("dataset: has no samples")
    if isinstance(given, Tensor):
        found = given
    else:
        values = [given(dataset[i]) for i in range(count)] if callable(given) else list(given)
        wrong = [(i, value) for i, value in enumerate(values) if int(value) != value]
        if wrong:
            raise ValueError(f"complexity of sample {wrong[0][0]} is {wrong[0][1]}: must be an integer")
        found = torch.tensor(values, dtype=torch.int64)
    if found.shape != (count,) or found.is_floating_point():
        raise ValueError(f"complexity: expected {count} integers, one per sample, got {found.dtype} {[*found.shape]}")
    return found.long()


class DistributedIndices(Protocol):
    """What a sampler for several ranks has: torch's `DistributedSampler`, or `LoadBalancedSampler`."""

    num_replicas: int
    rank: int
    drop_last: bool

    def __iter__(self) -> Iterator[int]: ...

    def set_epoch(self, epoch: int) -> None: ...


class LoadBalancedBatchSampler(Sampler[list[int]]):
    """Batches of any sizes, equally many on all ranks: for `DataLoader(batch_sampler=...)`.

    Every rank cuts the indices of all ranks into batches with `batch_fn`, so that all know how many there are. Ranks
    with fewer than the most get their own first batches again; with `drop_last` all stop with the rank that has the
    fewest. `batch_fn` must depend on its argument alone. ValueError for a sampler with `drop_last`, which would leave
    out samples before they can be counted, and for a `batch_fn` that makes no batch.
    """

    def __init__(self, sampler: DistributedIndices, batch_fn: BatchFunction, drop_last: bool = False) -> None:
        if sampler.drop_last:
            raise ValueError("sampler: has drop_last=True; allowed: False, and drop_last of the batch sampler")
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self._batches: list[list[list[int]]] | None = None

    def __len__(self) -> int:
        """Batches of this epoch."""
        return len(self.batches()[0])

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches()[self.sampler.rank])

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; call it before every epoch, with the same number on all ranks."""
        self.sampler.set_epoch(epoch)
        self._batches = None

    def batches(self) -> list[list[list[int]]]:
        """The batches of every rank in this epoch."""
        if self._batches is None:
            own = [[list(batch) for batch in self.batch_fn(list(sampler))] for sampler in self._of_all_ranks()]
            lengths = [len(batches) for batches in own]
            if not min(lengths):
                raise ValueError(f"batch_fn: made no batch for rank {lengths.index(0)}")
            steps = min(lengths) if self.drop_last else max(lengths)
            self._batches = [[batches[k % len(batches)] for k in range(steps)] for batches in own]
        return self._batches

    def _of_all_ranks(self) -> Iterator[DistributedIndices]:
        sampler = copy.copy(self.sampler)  # one for all, as it may keep what it has found for the first
        for rank in range(sampler.num_replicas):
            sampler.rank = rank
            yield sampler


def in_order(size: int) -> BatchFunction:
    """A `batch_fn`: batches of `size` samples as they come; what does not fill the last one is left out."""

    def cut(indices: list[int]) -> list[list[int]]:
        return [indices[k : k + size] for k in range(0, len(indices) - size + 1, size)]

    return cut


def of_similar_length(lengths: Sequence[int], size: int, window: int = 50) -> BatchFunction:
    """A `batch_fn`: batches of `size` samples of similar length, so that little of a padded batch is padding.

    Of every `window` batches the samples are sorted by length; the batches then come in a random order, which is the
    same on all ranks. What does not fill the last batch is left out.
    """
    cut = in_order(size)

    def sort(indices: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        whole = indices[: len(indices) // size * size]
        for number, begin in enumerate(range(0, len(whole), window * size)):
            near = cut(sorted(whole[begin : begin + window * size], key=lengths.__getitem__))
            order = torch.randperm(len(near), generator=torch.Generator().manual_seed(number))
            batches += [list(near[k]) for k in order.tolist()]
        return batches

    return sort
