"""A rehearsal of one bucket of every kind is that of all buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from algorithms.base import Bucket, Comm, Turn, When
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.simulate.rehearsal import rehearse
from tests.catalogue import algorithms, resolved, short

BASE = ("mode=simulate", "task=bert_large", "run.steps=2", "run.untimed=1", "run.channels=1", "run.bucket_size=10MiB")


@pytest.mark.parametrize("layout", ["2x1", "2x2"])
@pytest.mark.parametrize("name", algorithms())
def test_buckets_of_a_kind_do_the_same(name: str, layout: str) -> None:
    servers, ranks = layout.split("x")
    cluster = (f"cluster.servers={servers}", f"cluster.ranks_per_server={ranks}")
    cell = resolved(*BASE, f"algo={name}", *cluster, *short(name))
    assert rehearse(cell, alike=True) == rehearse(cell, alike=False)


class Fragments(GradientAllReduce):
    """Sends every second bucket in one step, and the others in the next."""

    when = When.STEP
    gradients = False

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: object) -> None:
        self.number = len(buckets)

    def turns(self, step: int) -> Sequence[Turn]:
        return (Turn(self.when, tuple(range(step % 2, self.number, 2))),)


def test_an_algorithm_that_treats_them_differently_is_rehearsed_bucket_by_bucket() -> None:
    cell = resolved(*BASE, "algo=gradient_allreduce", "cluster.servers=2")
    target = f"{Fragments.__module__}.{Fragments.__qualname__}"
    cell = replace(cell, algo=replace(cell.algo, target=target))
    assert rehearse(cell, alike=True) == rehearse(cell, alike=False)
    assert rehearse(cell, alike=True).steps[0] != rehearse(cell, alike=True).steps[1]
