"""The primitives against their formulas, done by hand in plain torch; every world size and layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.primitives import c_fp_s, c_lp_s
from bagua_bench.comm import CountedComm
from tests.ranks import run

FLAT = [("threads", n, 1) for n in (1, 2, 3, 5)] + [("gloo", 2, 1), ("gloo", 4, 1)]
SERVERS = [("threads", 4, 2), ("threads", 2, 2), ("threads", 3, 1), ("threads", 6, 3), ("gloo", 4, 2), ("gloo", 2, 2)]
worlds = pytest.mark.parametrize(("kind", "size", "per_server"), FLAT + SERVERS)


def data(rank: int, elements: int = 240) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def quantised(rows: torch.Tensor) -> torch.Tensor:
    """Each row on its 8-bit grid and back: the codec's formula, written out (docs/algorithms.md, Codecs)."""
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    spread = (high - low) + 1e-7
    scale = torch.full_like(spread, 255) / spread
    upper = torch.round(high * scale)
    codes = (torch.minimum(torch.round(rows * scale), upper) - (upper - 255)).clamp(0, 255)
    return (codes + (upper - 255)) / scale


def scatter_gather_by_hand(everyone: torch.Tensor, average: bool) -> torch.Tensor:
    """What all ranks end with, from everyone's tensors (n, N) (docs/algorithms.md, Primitives)."""
    n = len(everyone)
    if n == 1:
        return everyone[0]
    chunks = torch.stack([quantised(x.view(n, -1)) for x in everyone])  # source, chunk, element
    reduced = chunks[0]
    for other in chunks[1:]:
        reduced = reduced + other
    return quantised(reduced / n if average else reduced).view(-1)


def per_server_means(size: int, per_server: int, average: bool) -> torch.Tensor:
    everyone = torch.stack([data(rank) for rank in range(size)]).view(size // per_server, per_server, -1)
    return everyone.mean(1) if average else everyone.sum(1)


def full(comm: CountedComm, average: bool, hierarchical: bool) -> torch.Tensor:
    x = data(comm.rank)
    c_fp_s(x, comm, average=average, hierarchical=hierarchical)
    return x


def low(comm: CountedComm, average: bool, hierarchical: bool) -> tuple[torch.Tensor, dict[str, float]]:
    x = data(comm.rank)
    c_lp_s(x, comm, MinMaxUInt8(), average=average, hierarchical=hierarchical)
    return x, comm.sent


@worlds
@pytest.mark.parametrize("average", [True, False])
def test_c_fp_s(kind: str, size: int, per_server: int, average: bool) -> None:
    everyone = torch.stack([data(rank) for rank in range(size)])
    expected = everyone.mean(0) if average else everyone.sum(0)
    for x in run(kind, size, full, average, per_server > 1, per_server=per_server):
        torch.testing.assert_close(x, expected)


@worlds
@pytest.mark.parametrize("average", [True, False])
def test_c_lp_s(kind: str, size: int, per_server: int, average: bool) -> None:
    results = [x for x, _ in run(kind, size, low, average, per_server > 1, per_server=per_server)]
    assert all(torch.equal(x, results[0]) for x in results), "ranks differ"
    means = per_server_means(size, per_server, average)
    if per_server == 1 and kind == "threads":
        assert torch.equal(results[0], scatter_gather_by_hand(means, average))
    else:  # the order of additions inside a server is the transport's: a code may fall on the neighbouring level
        step = 2.5 * float(means.max() - means.min()) * (1 if average else len(means)) / 255
        torch.testing.assert_close(results[0], scatter_gather_by_hand(means, average), rtol=0, atol=step)


@pytest.mark.parametrize(("size", "per_server"), [(2, 1), (3, 1), (5, 1), (4, 2), (6, 3)])
def test_bytes_are_the_formula_s(size: int, per_server: int) -> None:
    n = size // per_server
    chunk = 32 + -(-(240 // n) // 32) * 32
    for rank, (_, sent) in enumerate(run("threads", size, low, True, per_server > 1, per_server=per_server)):
        leader = rank % per_server == 0
        assert sent["flat" if per_server == 1 else "inter"] == (2 * (n - 1) * chunk if leader else 0)


def low_of(comm: CountedComm, everyone: torch.Tensor) -> torch.Tensor:
    x = everyone[comm.rank].clone()
    c_lp_s(x, comm, MinMaxUInt8())
    return x


@given(size=st.integers(2, 4), rows=st.integers(1, 300), seed=st.integers(0, 1000), magnitude=st.floats(1e-6, 1e6))
@settings(max_examples=60, deadline=None)
def test_scatter_gather_is_bit_equal_and_bounded(size: int, rows: int, seed: int, magnitude: float) -> None:
    everyone = magnitude * torch.randn(size, size * rows, generator=torch.Generator().manual_seed(seed))
    results = run("threads", size, low_of, everyone)
    assert all(torch.equal(x, results[0]) for x in results)
    spread = float(everyone.max() - everyone.min()) + 2e-7
    bound = 2 * spread / 255 + 1e-5 * float(everyone.abs().max())  # two quantisations, each half a level
    assert (results[0] - everyone.mean(0)).abs().max() <= bound


@given(padding=st.integers(1, 40), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_zero_padding_stays_zero(padding: int, seed: int) -> None:
    everyone = torch.randn(2, 100, generator=torch.Generator().manual_seed(seed))
    everyone[:, 100 - padding :] = 0
    for x in run("threads", 2, low_of, everyone):
        assert (x[100 - padding :] == 0).all()


def single(comm: CountedComm, compress: bool) -> torch.Tensor:
    x = data(0)
    c_lp_s(x, comm, MinMaxUInt8(), compress_single_rank=compress)
    return x


def test_one_rank_is_left_alone_unless_asked() -> None:
    assert torch.equal(run("threads", 1, single, False)[0], data(0))
    assert torch.equal(run("threads", 1, single, True)[0], quantised(quantised(data(0)[None]))[0])


def poisoned(comm: CountedComm) -> None:
    x = data(comm.rank)
    if comm.rank == 1:
        x[3] = float("nan")
    c_lp_s(x, comm, MinMaxUInt8())


@pytest.mark.parametrize(("kind", "size"), [("threads", 3), ("gloo", 2)])
def test_nan_is_an_error_on_its_rank(kind: str, size: int) -> None:
    with pytest.raises(ValueError, match="NaN or Inf"):
        run(kind, size, poisoned, timeout=10)
