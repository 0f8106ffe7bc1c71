"""Every collective, on threads and on gloo processes, against plain torch on all ranks' data; bytes counted."""

from __future__ import annotations

import pytest
import torch

from algorithms.base import Op
from bagua_bench.comm import CommError, CountedComm
from bagua_bench.comm.traffic import broadcast
from tests.ranks import outcomes, run

WORLDS = [("threads", n) for n in (1, 2, 3, 5)] + [("gloo", 2), ("gloo", 4)]
everywhere = pytest.mark.parametrize(("kind", "size"), WORLDS)


def data(rank: int) -> torch.Tensor:
    return torch.randn(60, generator=torch.Generator().manual_seed(rank))


def all_collectives(comm: CountedComm) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    for op in Op:
        out[f"all_reduce {op.value}"] = data(comm.rank)
        comm.all_reduce(out[f"all_reduce {op.value}"], op)
    reduced = data(comm.rank)
    comm.reduce(reduced, comm.size - 1, Op.AVG)
    if comm.rank == comm.size - 1:
        out["reduce"] = reduced
    out["broadcast"] = data(comm.rank)
    comm.broadcast(out["broadcast"], comm.size - 1)
    rows = data(comm.rank)[: 12 * comm.size].view(comm.size, 12)
    out["all_to_all"] = comm.all_to_all(rows)
    given = torch.empty_like(rows)
    out["all_to_all out"] = comm.all_to_all(rows, given)
    assert out["all_to_all out"] is given
    out["all_gather"] = comm.all_gather(data(comm.rank)[:7])
    comm.barrier()
    return out


@everywhere
def test_collectives(kind: str, size: int) -> None:
    everyone = torch.stack([data(rank) for rank in range(size)])
    results = run(kind, size, all_collectives)
    for rank, out in enumerate(results):
        torch.testing.assert_close(out["all_reduce sum"], everyone.sum(0))
        torch.testing.assert_close(out["all_reduce avg"], everyone.mean(0))
        assert torch.equal(out["all_reduce min"], everyone.amin(0))
        assert torch.equal(out["all_reduce max"], everyone.amax(0))
        assert torch.equal(out["broadcast"], everyone[-1])
        rows = everyone[:, 12 * rank : 12 * (rank + 1)]
        assert torch.equal(out["all_to_all"], rows)
        assert torch.equal(out["all_to_all out"], rows)
        assert torch.equal(out["all_gather"], everyone[:, :7])
    torch.testing.assert_close(results[-1]["reduce"], everyone.mean(0))


def ring(comm: CountedComm) -> tuple[list[torch.Tensor], float]:
    before = comm.sent["flat"]
    got = comm.exchange(data(comm.rank), [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size])
    return got, comm.sent["flat"] - before


@pytest.mark.parametrize(("kind", "size"), [world for world in WORLDS if world[1] > 1])
def test_exchange_with_both_neighbours(kind: str, size: int) -> None:
    for rank, (got, sent) in enumerate(run(kind, size, ring)):
        assert torch.equal(got[0], data((rank - 1) % size))
        assert torch.equal(got[1], data((rank + 1) % size))
        assert sent == 2 * 60 * 4


def by_level(comm: CountedComm) -> dict[str, float]:
    x = torch.ones(60)
    if comm.intra is not None:
        comm.intra.all_reduce(x)
    if comm.inter is not None:
        comm.inter.all_reduce(x)
    comm.all_reduce(x)
    return {**comm.sent, "value": float(x[0])}


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_servers(kind: str) -> None:
    results = run(kind, 4, by_level, per_server=2)
    for rank, result in enumerate(results):
        leader = rank % 2 == 0
        assert result["intra"] == 2 * 1 / 2 * 240
        assert result["inter"] == (240 if leader else 0)
        assert result["flat"] == 2 * 3 / 4 * 240
        assert result["value"] == 4 + 2 + 4 + 2  # leaders hold the sum over leaders, the others that of their server


def test_broadcast_tree_sends_every_byte_once_to_every_rank() -> None:
    for n in range(1, 20):
        assert sum(broadcast(10, n, distance) for distance in range(n)) == 10 * (n - 1)
    assert [broadcast(10, 6, distance) for distance in range(6)] == [30, 20, 0, 0, 0, 0], "0 to 1, 2, 4; 1 to 3, 5"


def fail_on_last(comm: CountedComm) -> None:
    comm.all_reduce(torch.ones(3))
    if comm.rank == comm.size - 1:
        raise ValueError("broken")
    comm.all_reduce(torch.ones(3))


@pytest.mark.parametrize(("kind", "size"), [("threads", 3), ("gloo", 2)])
def test_a_failed_rank_fails_its_peers(kind: str, size: int) -> None:
    *others, last = outcomes(kind, size, fail_on_last, timeout=10)
    assert isinstance(last, ValueError)
    assert all(isinstance(error, CommError) for error in others)


def test_servers_must_be_equal() -> None:
    with pytest.raises(ValueError, match="ranks_per_server=2"):
        run("gloo", 3, by_level, per_server=2)
