"""What a training task is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]
"""What one rank trains on in one step; the first dimension of every tensor is the samples."""


@dataclass(frozen=True)
class Position:
    """How far training has come in its data: the first `seen` samples of `epoch`'s order, by all ranks together.

    shares: where ranks were not in step, what they have had besides, deal after deal. A deal to n ranks is of what is
    left of the order, in turn, so that rank r's share is rest[r::n]; the deal's r-th number is how many samples of the
    front of its share rank r has had. Lists, which JSON has in place of tuples, become tuples.
    """

    epoch: int = 0
    seen: int = 0
    shares: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(tuple(deal) for deal in self.shares))

    def number(self, total: int) -> int:
        """Samples of the epoch's `total` that have been had. ValueError, one line, where it has not that many."""
        if not 0 <= self.seen <= total:
            raise ValueError(f"seen={self.seen}: allowed: 0 to {total}")
        had = self.seen
        for deal in self.shares:
            _check(deal, total - had)
            had += sum(deal)
        return had

    def left(self, order: Sequence[int]) -> list[int]:
        """What is left of the epoch's order. ValueError, one line, where more has been had than there is."""
        self.number(len(order))
        rest = list(order[self.seen :])
        for deal in self.shares:
            ranks = len(deal)
            rest = [sample for k, sample in enumerate(rest) if k // ranks >= deal[k % ranks]]
        return rest

    def after(self, number: int, total: int) -> Position:
        """After `number` more samples in order, all of one epoch of `total`: the next if fewer are left of this."""
        if number > total:
            raise ValueError(f"number={number}: an epoch has {total} samples")
        here = self if total - self.number(total) >= number else Position(self.epoch + 1)
        return here.after_unequal([number], total)

    def after_unequal(self, counts: Sequence[int], total: int) -> Position:
        """After a deal of what is left of the epoch's `total`, of which rank r has had its first counts[r] samples.

        ValueError, one line, where a count is negative or more than the rank's share has.
        """
        _check(counts, total - self.number(total))
        # What all ranks have had is the next samples in order, and what some have had besides is a deal of the rest.
        least = min(counts)
        together, ahead = least * len(counts), tuple(count - least for count in counts)
        seen, shares = self.seen, self.shares
        if not shares:
            seen += together
        elif len(shares[-1]) == 1:
            shares = (*shares[:-1], (shares[-1][0] + together,))
        elif together:
            shares = (*shares, (together,))
        return Position(self.epoch, seen, (*shares, ahead) if any(ahead) else shares)

    def after_apart(self, taken: Sequence[int], total: int, batch: int = 1) -> Position:
        """Where ranks are together that began here and went on at paces of their own.

        taken: samples that each rank has taken since, of epochs of `total`, in batches of `batch`; of a rank that was
        lost, as many as it last told. A rank's share of an epoch is as many whole batches as all ranks can have.

        It is the first epoch in which a rank has batches left of its share, or the one in which all of them are. What
        ranks ahead have already taken of later epochs is forgotten: those samples, and no others, come twice.
        ValueError, one line, for a number that does not fit.
        """
        step = len(taken) * batch
        if not 0 < step <= total:
            raise ValueError(f"{len(taken)} ranks x batch={batch}: allowed: 1 to {total} samples")
        here, share = self, (total - self.number(total)) // step * batch
        while min(taken) >= share < max(taken):
            taken = [number - share for number in taken]
            here, share = Position(here.epoch + 1), total // step * batch
        return here.after_unequal([min(number, share) for number in taken], total)


def _check(deal: Sequence[int], left: int) -> None:
    """ValueError, one line, unless `left` samples can be dealt so that each rank has had so many of its share."""
    if not deal:
        raise ValueError("shares: a deal is to at least 1 rank")
    for rank, count in enumerate(deal):
        share = len(range(rank, left, len(deal)))
        if not 0 <= count <= share:
            raise ValueError(f"shares={[*deal]}: rank {rank} has had {count}; allowed: 0 to {share}")


class Task(ABC):
    """A model with its data, loss and metric. Constructor arguments are the keys of `conf/task/<name>.yaml`.

    `scale` is one of paper (the published model and input), cpu (the same parameters, small input) and tiny (a
    small model as well, for tests).
    """

    batch: int
    """Samples per rank and step."""
    synthetic: bool
    """Whether the data is generated."""
    samples_per_epoch: int
    sync_bn: bool = False
    """Whether batch norms take their statistics over the batches of all ranks."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the model, initialised from torch's global generator."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the task's recipe."""

    @abstractmethod
    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        """Endless CPU batches of rank's share of the data; a function of its arguments alone."""

    def resumed(self, rank: int, size: int, seed: int, begin: Position) -> Iterator[Batch]:
        """`batches` from a position on, for elastic training.

        Rank's batches are its share of what is left (`Position.left`), dealt out in turn, so that the k-th batches of
        all ranks are the next size x batch samples; an epoch ends where fewer than that are left. They do not depend
        on how far other ranks have come: `Position.after_apart` says where ranks out of step are together.
        """
        raise NotImplementedError(f"{type(self).__name__}.resumed: this task cannot begin in mid-epoch")

    def typical(self) -> Batch:
        """A batch of the work that a step is said to take; what `work` is relative to."""
        return next(self.batches(0, 1, 0))

    def work(self, size: int, seed: int) -> Iterator[tuple[float, ...]] | None:
        """The work of forward and backward on every rank's batch, one entry per rank, batch after batch.

        A `typical` batch is 1. None: all batches are alike.
        """
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of the batch, a scalar; batch and model are on one device."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data, higher or lower is better as their names say; restores the training mode."""
