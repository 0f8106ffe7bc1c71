"""Chunks that come before their message is posted."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from bagua_bench.comm.torch_groups import TorchComm
from tests.ranks import run

pytestmark = pytest.mark.usefixtures("built")

_MESSAGES, _NUMBERS = 12, 1 << 15  # of 128 KiB, which is a chunk


def _late(comm: TorchComm) -> list[dict[str, float]]:
    """Counters of the streams to a rank that takes one message after another when all have been sent."""
    group = dist.new_group(backend="bagua_net")
    if comm.rank == 0:
        for sent in [dist.isend(torch.full((_NUMBERS,), float(k)), 1, group=group) for k in range(_MESSAGES)]:
            assert sent is not None
            sent.wait()
        return []
    time.sleep(0.3)
    places, coming = [torch.empty(_NUMBERS) for _ in range(_MESSAGES)], []
    for place in places:
        coming.append(dist.irecv(place, 0, group=group))
        time.sleep(0.02)
    for number, (place, work) in enumerate(zip(places, coming, strict=True)):
        assert work is not None
        work.wait()
        assert (place == number).all()
    found: list[dict[str, float]] = group.report(0, 1)
    return found


def test_each_counts_once() -> None:
    """However often it is looked at because something else is posted."""
    _, streams = run("bagua_net", 2, _late)
    parked, received = ([stream[what] for stream in streams] for what in ("parked", "chunks_received"))
    assert sum(parked) > 0
    assert all(p <= r for p, r in zip(parked, received, strict=True)), (parked, received)
