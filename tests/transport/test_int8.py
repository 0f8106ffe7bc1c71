"""Sums that travel as 8-bit integers: how wrong they may be, what stays exact, and that they are counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from algorithms.base import Op
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.network_shape import INT8, LINUX_WINDOW, Link, Shape
from bagua_bench.network import star
from bagua_bench.simulate.tape import Tape, TapeComm
from bagua_bench.transport import joining
from bagua_bench.transport.native import Group
from tests.emulated import needs
from tests.ranks import outcomes, run
from tests.transport.test_torch import _data
from tools.transport import torch_bench

LATE = {"BAGUA_NET_EAGER": "0", "BAGUA_NET_STREAMS": "4"}
pytestmark = pytest.mark.usefixtures("built")
SHARE = 256  # elements that share a scale
LARGE = 64 * SHARE  # elements: 64 KiB
SHIFT = 2.0**-20  # what rounding of the floats themselves may add, relatively
_FLOAT32, _SUM = 0, 0
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def two() -> Iterator[list[Group]]:
    """Two ranks in this process."""
    with closing(Group(0, 2)) as first, closing(Group(1, 2)) as second, ThreadPoolExecutor() as pool:
        groups = [first, second]
        list(pool.map(lambda group: group.join([first.handle, second.handle], 60.0), groups))
        for group in groups:
            group.use_int8()
        yield groups


def _summed(groups: list[Group], parts: list[Floats]) -> Floats:
    """The sum; both ranks have the same bits."""
    both = [part.copy() for part in parts]

    def reduce(rank: int) -> None:
        groups[rank].all_reduce(both[rank].ctypes.data, both[rank].size, _FLOAT32, _SUM, 60.0)

    with ThreadPoolExecutor() as pool:
        list(pool.map(reduce, range(2)))
    assert both[0].tobytes() == both[1].tobytes()
    return both[0]


def _largest(x: Floats) -> Floats:
    """In each element's place the largest magnitude of those that it shares a scale with."""
    most: Floats = np.abs(x.reshape(-1, SHARE)).max(1)
    return np.repeat(most, SHARE)


_any, _usual = (st.floats(-most, most, width=32) for most in (2.0**100, 10.0))
_parts = arrays.arrays(np.float32, LARGE, elements=_any, fill=_usual)


@given(_parts, _parts)
@settings(max_examples=50, deadline=None)
def test_an_element_is_wrong_by_no_more_than_its_share_allows(two: list[Group], a: Floats, b: Floats) -> None:
    """One packing of a rank's own elements, and one of the sum: 1/254 of the largest magnitude each."""
    got, exact = _summed(two, [a, b]), a.astype(float) + b
    most = np.maximum(_largest(a), _largest(b)).astype(float)
    allowed = (most + _largest(got)) / 254 * (1 + 1 / 100) + SHIFT * most + 1e-35
    assert (np.abs(got - exact) <= allowed).all()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_has_diverged_stays_so_and_the_others_are_not_touched(two: list[Group], bad: float, rank: int) -> None:
    parts = [np.ones(LARGE, np.float32), np.ones(LARGE, np.float32)]
    parts[rank][5 * SHARE + 3] = bad
    got = _summed(two, parts)
    share = slice(5 * SHARE, 6 * SHARE)
    assert np.isnan(got[share]).all()
    assert (np.delete(got, np.arange(LARGE)[share]) == 2).all()


def test_zeros_and_single_values_are_exact(two: list[Group]) -> None:
    assert (_summed(two, [np.zeros(LARGE, np.float32)] * 2) == 0).all()
    one = np.full(LARGE, 127.0, np.float32)
    assert (_summed(two, [one, one]) == 254).all()


def test_it_is_counted(two: list[Group]) -> None:
    before = two[0].lossy()
    _summed(two, [np.ones(LARGE, np.float32)] * 2)
    after = two[0].lossy()
    assert (after.operations - before.operations, after.bytes - before.bytes) == (1, 4 * LARGE)
    assert after.sent - before.sent == LARGE + LARGE // SHARE * 4, "half of the elements, twice"


def _int8(comm: TorchComm) -> Any:
    os.environ[joining.WIRE] = INT8
    return dist.new_group(backend="bagua_net")


def _reduced(
    comm: TorchComm, dtype: torch.dtype, op: str, count: int, line: list[int] | None = None, ring: bool = False
) -> tuple[bytes, float, int]:
    """The bytes of the result, its largest error, and how many operations were lossy."""
    group = _int8(comm)
    if line is not None:
        group._native.arrange(line, line[::-1], ring)
    parts = [_data(rank, count, dtype) for rank in range(comm.size)]
    x = parts[comm.rank].clone()
    dist.all_reduce(x, getattr(dist.ReduceOp, op), group=group)
    exact = torch.stack([part.double() for part in parts])
    wanted = {"SUM": exact.sum(0), "AVG": exact.mean(0), "MAX": exact.amax(0)}[op]
    return x.view(torch.uint8).numpy().tobytes(), float((x.double() - wanted).abs().max()), group.lossy().operations


@pytest.mark.parametrize("op", ["SUM", "AVG"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_all_ranks_get_the_same_bits(size: int, dtype: torch.dtype, op: str) -> None:
    """393,217 elements divide by nothing, and three ranks send slices of nothing."""
    found = run("bagua_net", size, _reduced, dtype, op, 393_217)
    assert len({content for content, _, _ in found}) == 1
    # At most n packings of partial sums of normally distributed elements, each below 6 n; bfloat16 has 8 bits, too.
    allowed = size * 6 * size / 254 * (2 if dtype == torch.bfloat16 else 1) / (size if op == "AVG" else 1)
    assert 0 < found[0][1] < allowed
    assert all(operations == 1 for _, _, operations in found)


@pytest.mark.parametrize(
    ("line", "ring"), [([2, 0, 1], True), ([3, 1, 0, 2], False), ([3, 1, 0, 2], True), ([0, 1, 2, 3], False)]
)
def test_large_sums_in_any_order(line: list[int], ring: bool) -> None:
    """Several slices of a block."""
    found = run("bagua_net", len(line), _reduced, torch.float32, "SUM", 5_000_001, line, ring)
    assert len({content for content, _, _ in found}) == 1
    assert 0 < found[0][1] < len(line) * 6 * len(line) / 254


def _late(comm: TorchComm) -> bytes:
    """Connections are opened when they are needed: the first operation does not know them."""
    os.environ["BAGUA_NET_EAGER"] = "0"
    content, error, _ = _reduced(comm, torch.float32, "SUM", 1_000_001)
    assert error < comm.size * 6 * comm.size / 254
    return content


@needs("link")
def test_a_group_that_opens_its_connections_late_over_a_long_path() -> None:
    link = Link(200e6, 0.01, 0.0, 0.0)
    shape = Shape((link,) * 4, "link", "cubic", LINUX_WINDOW, 140, 0)
    with star.up(shape) as network, torch_bench.ranks(torch_bench.RANK, network.hosts, 1, LATE) as ranks:
        for answer in torch_bench.ask_all(ranks, {"error": 1_000_001, "ways": [INT8]}):
            assert 0.002 < answer[INT8] < 0.03, "four packings of normally distributed elements"


@pytest.mark.parametrize("size", [2, 4])
def test_connections_that_are_opened_late(size: int) -> None:
    assert len(set(run("bagua_net", size, _late))) == 1


def _not_finite(comm: TorchComm) -> bytes:
    group = _int8(comm)
    x = torch.ones(100_000)
    x[777] = torch.nan if comm.rank == comm.size - 1 else 1
    dist.all_reduce(x, group=group)
    assert x[777].isnan()
    assert x.isnan().sum() <= SHARE
    assert x[~x.isnan()].sub(comm.size).abs().max() < 1e-3
    return x.numpy().tobytes()


@pytest.mark.parametrize("size", [3, 4, 8])
def test_one_share_diverges_and_no_other(size: int) -> None:
    assert len(set(run("bagua_net", size, _not_finite))) == 1


@pytest.mark.parametrize(
    ("dtype", "op", "count"),
    [
        (torch.float64, "SUM", 100_000),
        (torch.int32, "SUM", 100_000),
        (torch.float32, "MAX", 100_000),
        (torch.float32, "SUM", 8192),
    ],
)
def test_what_stays_exact(dtype: torch.dtype, op: str, count: int) -> None:
    """What is no sum of floats of up to 32 bits, and what is small."""
    for _, error, operations in run("bagua_net", 2, _reduced, dtype, op, count):
        assert error < 1e-6
        assert operations == 0


def _everything(comm: TorchComm) -> None:
    """Whatever else moves floats does so as they are."""
    group = _int8(comm)
    x = _data(comm.rank, 100_000, torch.float32)
    first = _data(0, 100_000, torch.float32)
    copy = x.clone()
    dist.broadcast(copy, 0, group=group)
    assert torch.equal(copy, first)
    gathered = [torch.empty_like(x) for _ in range(comm.size)]
    dist.all_gather(gathered, x, group=group)
    assert torch.equal(gathered[0], first)
    own = torch.empty(100_000 // comm.size)
    dist.reduce_scatter_tensor(own, torch.ones(100_000) / 3, group=group)
    assert torch.equal(own, torch.full_like(own, 2 * (torch.ones(1) / 3).item()))
    assert group.lossy() == (0, 0, 0)


def test_other_operations_are_exact() -> None:
    run("bagua_net", 2, _everything)


def _counted(comm: TorchComm) -> None:
    lossy = TorchComm(_int8(comm), 60.0)
    x = torch.ones(1_000_000)
    lossy.all_reduce(x, Op.AVG)
    assert lossy.sent["flat"] == pytest.approx(lossy.group.lossy().sent, rel=1e-3)
    lossy.all_reduce(torch.ones(100), Op.SUM)
    assert lossy.group.lossy().operations == 1


@pytest.mark.parametrize("size", [2, 3])
def test_the_communicator_counts_what_travels(size: int) -> None:
    run("bagua_net", size, _counted)


def _beside_the_simulator(comm: TorchComm) -> list[tuple[int, int]]:
    lossy, simulated = TorchComm(_int8(comm), 60.0), TapeComm.world(Tape(), comm.size, 1, comm.rank, INT8)
    found = []
    for kind in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.int32,
        torch.uint8,
    ):
        for count in (1, 4097, 8192, 8193, 16384, 16385, 32769, 100_000):
            x = torch.empty(count, dtype=kind)
            adds = [Op.SUM, Op.AVG] if kind.is_floating_point or kind.is_complex else [Op.SUM]
            for op in adds if kind.is_complex else [*adds, Op.MAX]:
                found.append((lossy._reduced_bytes(x, op), simulated._reduced_bytes(x, op)))
    return found


def test_the_simulator_counts_the_same() -> None:
    for found in run("bagua_net", 2, _beside_the_simulator):
        assert all(real == simulated for real, simulated in found)
        assert len({real for real, _ in found}) > 20


def _disagreeing(comm: TorchComm) -> None:
    os.environ[joining.WIRE] = INT8 if comm.rank else joining.EXACT
    dist.new_group(backend="bagua_net")


def _unknown(comm: TorchComm) -> None:
    os.environ[joining.WIRE] = "int4"
    dist.new_group(backend="bagua_net")


def test_ranks_that_choose_differently_are_told_at_once() -> None:
    wanted = "BAGUA_NET_WIRE: exact on rank 0, int8 on rank 1; allowed: the same on all ranks"
    assert all(wanted in str(outcome) for outcome in outcomes("bagua_net", 2, _disagreeing))


def test_another_value_is_refused() -> None:
    assert all("BAGUA_NET_WIRE=int4: allowed: exact, int8" in str(x) for x in outcomes("bagua_net", 2, _unknown))


def _trained(comm: TorchComm, wire: str) -> float:
    """The loss of a small network after some steps of DDP; each rank has its own half of the data."""
    os.environ[joining.WIRE] = wire
    group = dist.new_group(backend="bagua_net")
    torch.manual_seed(0)
    truth = torch.randn(64, 1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.02)
    torch.manual_seed(1 + comm.rank)
    x = torch.randn(256, 64)
    y: Tensor = torch.tanh(x @ truth)
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(replica(x), y)
        loss.backward()
        optimizer.step()
    assert (group.lossy().operations > 0) == (wire == INT8)  # type: ignore[attr-defined]
    return float(loss.detach())


def test_a_model_learns_as_well() -> None:
    exact, packed = (sum(run("bagua_net", 2, _trained, wire)) / 2 for wire in (joining.EXACT, INT8))
    assert exact < 0.3, "it learns: the targets' variance is about 0.9"
    assert packed == pytest.approx(exact, rel=0.05)
