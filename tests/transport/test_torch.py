"""The torch.distributed backend beside gloo: the same calls, the same results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.comm.torch_groups import TorchComm
from tests.ranks import run
from tools.transport import shaped
from tools.transport.pair import GROUP, Pair

HOME = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("built")
SIZES = [1, 7, 1000, 50_000, 300_001]  # one message, few steps, ring; not divisible
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64, torch.uint8]
OPS = ["SUM", "PRODUCT", "MIN", "MAX"]
Group = Any


def _data(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def _reductions(comm: TorchComm) -> None:
    for dtype in FLOATS + INTEGERS:
        exact = not dtype.is_floating_point
        ops = OPS + (["BAND", "BOR", "BXOR"] if exact else ["AVG"])
        for op in ops:
            for count in SIZES if op == "SUM" else SIZES[1:3]:
                parts = [_data(r, count, dtype) for r in range(comm.size)]
                wanted = _reduced(parts, op)
                got = parts[comm.rank].clone()
                dist.all_reduce(got, getattr(dist.ReduceOp, op), group=comm.group)
                _close(got, wanted, f"{op} {dtype} {count}")


def _reduced(parts: list[Tensor], op: str) -> Tensor:
    """The reduction, in double or in integers that wrap."""
    dtype = parts[0].dtype
    x = torch.stack([p.double() if dtype.is_floating_point else p for p in parts])
    bits: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    if op in bits:
        out = x[0]
        for part in x[1:]:
            out = bits[op](out, part)
        return out
    simple = {"SUM": x.sum(0), "PRODUCT": x.prod(0), "MIN": x.amin(0), "MAX": x.amax(0)}
    return (x.mean(0) if op == "AVG" else simple[op]).to(dtype)


def _close(got: Tensor, wanted: Tensor, what: str) -> None:
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}.get(got.dtype, 1e-12)
    if got.dtype.is_floating_point:
        assert torch.allclose(got, wanted.to(got.dtype), rtol=tolerance, atol=tolerance), what
    else:
        assert torch.equal(got, wanted), what


@pytest.mark.parametrize("size", [2, 3, 4])
def test_reductions_of_every_type_and_operation(size: int) -> None:
    run("bagua_net", size, _reductions)


def _calls(comm: TorchComm, group: Group, count: int) -> list[Tensor]:
    """Every collective but the reductions, and those on the way; what this rank got."""
    me, n = comm.rank, comm.size
    x = _data(me, count, torch.int64)
    blocks = _data(me, n * count, torch.int64, 1)
    got: list[Tensor] = []
    for root in range(n):
        part = x.clone()
        dist.broadcast(part, group=group, group_src=root)
        total = x.clone()
        dist.reduce(total, group=group, group_dst=root)
        out = [torch.zeros_like(x) for _ in range(n)] if me == root else None
        dist.gather(x, out, group=group, group_dst=root)
        piece = torch.zeros_like(x)
        dist.scatter(piece, list(blocks.view(n, -1).unbind()) if me == root else None, group=group, group_src=root)
        got += [part, *([total] if me == root else []), *(out or []), piece]
    everyone = [torch.zeros_like(x) for _ in range(n)]
    dist.all_gather(everyone, x, group=group)
    flat = torch.zeros(n * count, dtype=x.dtype)
    dist.all_gather_into_tensor(flat, x, group=group)
    own = torch.zeros_like(x)
    dist.reduce_scatter(own, [b.clone() for b in blocks.view(n, -1)], group=group)
    tensor = torch.zeros_like(x)
    dist.reduce_scatter_tensor(tensor, blocks.clone(), group=group)  # gloo overwrites it
    swapped = torch.zeros_like(blocks)
    dist.all_to_all_single(swapped, blocks, group=group)
    splits = [(me + r) % 3 for r in range(n)]
    uneven = torch.zeros(sum(splits), 2, dtype=torch.int64)
    dist.all_to_all_single(uneven, blocks[: 2 * sum(splits)].view(-1, 2), splits, splits, group=group)
    objects: list[Any] = [None] * n
    dist.all_gather_object(objects, {"rank": me}, group=group)
    assert objects == [{"rank": r} for r in range(n)]
    dist.barrier(group=group)
    return [*got, *everyone, flat, own, tensor, swapped, uneven]


def _beside_gloo(comm: TorchComm, count: int) -> None:
    pairs = zip(_calls(comm, comm.group, count), _calls(comm, None, count), strict=True)
    assert [k for k, (got, wanted) in enumerate(pairs) if not torch.equal(got, wanted)] == []


@pytest.mark.parametrize(
    ("size", "count"), [*((size, count) for size in (1, 2, 3, 4) for count in (6, 300_000)), (3, 1_100_000), (7, 6)]
)
def test_every_collective_gives_what_gloo_gives(size: int, count: int) -> None:
    """The largest blocks go around in slices that are not copied."""
    run("bagua_net", size, _beside_gloo, count)


def _in_every_mode(comm: TorchComm) -> None:
    """What an operation keeps for the next one is of no mode of autograd."""
    parts = torch.ones(3 * comm.size, requires_grad=True)
    with torch.inference_mode():
        dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(3 * comm.size), group=comm.group)
    for asynchronous in (False, True):
        out = torch.zeros(3)
        with torch.no_grad():
            work = dist.reduce_scatter_tensor(out, parts, group=comm.group, async_op=asynchronous)
        if asynchronous:
            work.wait()
        assert out.tolist() == [comm.size] * 3
        assert not out.requires_grad
    with pytest.raises(ValueError, match="1 parts to reduce and scatter: allowed: 2, one per rank"):
        dist.reduce_scatter(torch.zeros(3), [torch.zeros(3)], group=comm.group)


def test_reduce_scatter_in_every_mode_of_autograd() -> None:
    run("bagua_net", 2, _in_every_mode)


def _lists(comm: TorchComm) -> None:
    n, me = comm.size, comm.rank
    parts = [torch.full((r + 1,), 10 * me + r) for r in range(n)]
    out = [torch.zeros(me + 1, dtype=torch.int64) for _ in range(n)]
    dist.all_to_all(out, parts, group=comm.group)
    assert [int(o[0]) for o in out] == [10 * r + me for r in range(n)]


def _strided(comm: TorchComm) -> None:
    """Not beside gloo, which leaves such a tensor as it was."""
    x = torch.zeros(1000, 2)[:, 0]
    x.copy_(_data(comm.rank, 1000, torch.float32))
    dist.all_reduce(x, group=comm.group)
    _close(x, _reduced([_data(r, 1000, torch.float32) for r in range(comm.size)], "SUM"), "strided")
    columns = [torch.zeros(1000, 2)[:, 1] for _ in range(comm.size)]
    dist.all_gather(columns, x, group=comm.group)
    assert all(torch.equal(column, x) for column in columns)
    several = [[torch.ones(1000), torch.ones(0), torch.ones(2)] for _ in range(comm.size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch means to remove it
        dist.all_gather_coalesced(several, [x, torch.ones(0), torch.full((2,), float(comm.rank))], group=comm.group)
    assert all(torch.equal(a, x) and not len(b) and c.tolist() == [r, r] for r, (a, b, c) in enumerate(several))


def _messages(comm: TorchComm) -> None:
    n, me = comm.size, comm.rank
    right, left = (me + 1) % n, (me - 1) % n
    for count in (1, 5000, 3_000_000):
        out, into = torch.full((count,), float(me)), torch.zeros(count)
        calls = [dist.P2POp(dist.isend, out, group=comm.group, group_peer=right)]
        calls += [dist.P2POp(dist.irecv, into, group=comm.group, group_peer=left)]
        works = dist.batch_isend_irecv(calls)
        for work in works:
            work.wait()
        assert (into == left).all()
    if me == 0:
        for k in range(100):
            dist.send(torch.tensor([k]), group=comm.group, group_dst=1)
    if me == 1:
        x = torch.zeros(1, dtype=torch.int64)
        for k in range(100):
            dist.recv(x, group=comm.group, group_src=0)
            assert int(x) == k


def _own_part(comm: TorchComm) -> None:
    """What a rank sends itself: apart, in place, and from where something else arrives meanwhile."""
    me, n, count = comm.rank, comm.size, 300_001
    wanted = [torch.arange(count) + 1000 * r for r in range(n)]
    for place in ("apart", "in place", "of another"):
        every = torch.zeros(n, count, dtype=torch.int64)
        own = {"apart": torch.zeros(count, dtype=torch.int64), "in place": every[1], "of another": every[0]}[place]
        own.copy_(wanted[me])
        dist.gather(own, list(every.unbind()) if me == 1 else None, group=comm.group, group_dst=1)
        assert me != 1 or all(map(torch.equal, every, wanted)), place
    for place in ("apart", "in place"):
        parts = [x.clone() for x in wanted]
        out = parts[1] if place == "in place" and me == 1 else torch.zeros(count, dtype=torch.int64)
        dist.scatter(out, parts if me == 1 else None, group=comm.group, group_src=1)
        assert torch.equal(out, wanted[me]), place
    pairs = torch.complex(torch.arange(3.0), torch.full((3,), me + 1.0))
    both = [torch.zeros(3, dtype=torch.complex64) for _ in range(n)]
    dist.gather(pairs.conj(), both if me == 1 else None, group=comm.group, group_dst=1)
    assert me != 1 or [x[2].item() for x in both] == [complex(2, -r - 1) for r in range(n)]


def _wrong_parts(comm: TorchComm) -> None:
    me, n = comm.rank, comm.size
    splits = [2 if r == me else 1 for r in range(n)]
    with pytest.raises(ValueError, match=f"rank {me} sends itself 8 bytes, and has room for 4"):
        dist.all_to_all_single(torch.zeros(n), torch.zeros(sum(splits)), [1] * n, splits, group=comm.group)
    few = [torch.zeros(1) for _ in range(n - 1)]
    with pytest.raises(ValueError, match=f"{n - 1} tensors: allowed: {n}, one per rank"):
        dist.all_to_all(few, few, group=comm.group)
    if me == 0:
        with pytest.raises(ValueError, match=f"{n - 1} tensors: allowed: {n}, one per rank"):
            dist.gather(torch.zeros(1), few, group=comm.group, group_dst=0)
        with pytest.raises(ValueError, match=f"{n - 1} tensors: allowed: {n}, one per rank"):
            dist.scatter(torch.zeros(1), few, group=comm.group, group_src=0)


def test_wrong_parts_are_refused_before_anything_moves() -> None:
    run("bagua_net", 3, _wrong_parts)


@pytest.mark.parametrize("size", [2, 3])
def test_what_a_rank_sends_itself(size: int) -> None:
    run("bagua_net", size, _own_part)


@pytest.mark.parametrize("idle", [0, 1], ids=["polls", "waits"])
@pytest.mark.parametrize("window", [1, 32])
def test_messages_of_random_sizes_and_contents(built: tuple[Path, Path], idle: int, window: int) -> None:
    with Pair(*built, GROUP) as pair:
        pair.link()
        pair.stream(size=2**20, count=150, window=window, idle=idle, check=7)
        pair.stream(size=2**23, count=40, window=window, idle=idle, check=7)
        assert sum(s["bytes_zero_copy"] for s in pair.a.ask("report", name="x.s")["streams"]) > 2**23
        pair.pingpong(size=30_000, count=300, idle=idle)


def _lent_share(pair: Pair, size: int, count: int) -> float:
    """Of what is sent in messages of so many bytes."""

    def totals() -> tuple[int, int]:
        streams = pair.a.ask("report", name="x.s")["streams"]
        return sum(s["bytes_zero_copy"] for s in streams), sum(s["bytes_sent"] for s in streams)

    lent, sent = totals()
    pair.stream(size=size, count=count, window=4, check=size)
    lent_then, sent_then = totals()
    return (lent_then - lent) / (sent_then - sent)


def test_a_group_lends_its_large_messages_and_over_slow_paths_smaller_ones(built: tuple[Path, Path]) -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)
    with shaped.pair() as sites:
        prefixes = (sites[0].prefix, sites[1].prefix)
        with Pair(*built, GROUP, {"NCCL_SOCKET_IFNAME": "bb0"}, prefixes) as pair:
            pair.link()
            end = time.monotonic() + 20  # for so long another's work may make the path slow
            while _lent_share(pair, 2**20, 100) > 0:
                assert time.monotonic() < end
            assert _lent_share(pair, 2**23, 40) > 0.2
            shaped.limit_connections(sites[0], 0.4e9)
            assert max(_lent_share(pair, 2**20, 60) for _ in range(3)) > 0.5
            assert _lent_share(pair, 2**17, 200) == 0


def _unattended(comm: TorchComm) -> None:
    group = dist.new_group(backend="bagua_net")
    x = torch.full((8_000_000,), 1.0 + comm.rank)
    work = dist.isend(x, group=group, group_dst=1) if comm.rank == 0 else dist.irecv(x, group=group, group_src=0)
    arrived, until = 0.0, time.monotonic() + 60
    while comm.rank == 1 and arrived < x.nbytes and time.monotonic() < until:
        time.sleep(0.05)  # neither waits nor asks
        arrived = sum(stream["bytes_received"] for stream in group._native.report(0, lane=1))
    dist.barrier(group=comm.group)
    work.wait()
    assert (x == 1).all()
    assert comm.rank == 0 or arrived == x.nbytes


def test_messages_that_nobody_waits_for_move_on() -> None:
    run("bagua_net", 2, _unattended)


def _two_waiters(comm: TorchComm) -> None:
    here, there = torch.full((2_000_000,), float(comm.rank)), torch.zeros(2_000_000)
    works = [dist.irecv(there, group=comm.group, group_src=1 - comm.rank)]
    works += [dist.isend(here, group=comm.group, group_dst=1 - comm.rank)]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda work: work.wait(), works))
    assert (there == 1 - comm.rank).all()


def test_two_threads_wait_for_messages_at_once() -> None:
    run("bagua_net", 2, _two_waiters)


def _complex(comm: TorchComm) -> None:
    n, me = comm.size, comm.rank
    parts = [torch.complex(_data(r, 6 * n, torch.float64, 2), _data(r, 6 * n, torch.float64, 3)) for r in range(n)]
    total = torch.stack(parts).sum(0)
    for op, wanted in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / n)):
        everywhere, at_root, own, single = parts[me].clone(), parts[me].clone(), *torch.zeros(2, 6, dtype=total.dtype)
        dist.all_reduce(everywhere, op, group=comm.group)
        dist.reduce(at_root, op=op, group=comm.group, group_dst=1)
        dist.reduce_scatter(own, [part.clone() for part in parts[me].view(n, -1)], op, group=comm.group)
        dist.reduce_scatter_tensor(single, parts[me].clone(), op, group=comm.group)
        assert torch.allclose(everywhere, wanted)
        assert me != 1 or torch.allclose(at_root, wanted)
        assert torch.allclose(own, wanted.view(n, -1)[me])
        assert torch.allclose(single, wanted.view(n, -1)[me])
    with pytest.raises(ValueError, match=r"bagua_net cannot reduce torch\.complex128 with PRODUCT"):
        dist.reduce(parts[me].clone(), op=dist.ReduceOp.PRODUCT, group=comm.group, group_dst=0)


def _from_anyone(comm: TorchComm) -> None:
    """Rank 0 takes what comes: whole messages, each sender's in order, without a word who sends when."""
    n, me, counts = comm.size, comm.rank, (1, 3_000_000, 5000, 0)
    if me:
        for number, count in enumerate(counts):
            dist.send(torch.full((count + 1,), float(100 * me + number)), group=comm.group, group_dst=0)
        return
    seen: dict[int, int] = {}
    into = torch.zeros(max(counts) + 1)
    for _ in range(len(counts) * (n - 1)):
        sender = dist.recv(into, group=comm.group)
        number = seen[sender] = seen.get(sender, -1) + 1
        assert (into[: counts[number] + 1] == 100 * sender + number).all()
    assert seen == dict.fromkeys(range(1, n), len(counts) - 1)


def _batches(comm: TorchComm) -> None:
    """As torch's own coalescing manager makes them, with a device and without."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    n, me = comm.size, comm.rank
    for device in (None, torch.device("cpu")):
        tensors = [torch.full((1000 * (k + 1),), float(me + k)) for k in range(5)]
        with _coalescing_manager(comm.group, device):
            for x in tensors:
                dist.all_reduce(x, group=comm.group)
        assert all((x == sum(range(n)) + n * k).all() for k, x in enumerate(tensors))
        gathered = [torch.zeros(n * 3) for _ in range(2)]
        with _coalescing_manager(comm.group, device, async_ops=True) as manager:
            for k, out in enumerate(gathered):
                dist.all_gather_into_tensor(out, torch.full((3,), float(me + k)), group=comm.group)
        manager.wait()
        assert [out.tolist() for out in gathered] == [
            [float(r + k) for r in range(n) for _ in range(3)] for k in (0, 1)
        ]
    came = torch.zeros(300_000)
    with _coalescing_manager(comm.group, torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((300_000,), float(me)), group=comm.group, group_dst=(me + 1) % n)
        dist.irecv(came, group=comm.group, group_src=(me - 1) % n)
    manager.wait()
    assert (came == (me - 1) % n).all()


def _asynchronous(comm: TorchComm) -> None:
    tensors = [torch.full((1000 * (k + 1),), float(comm.rank)) for k in range(20)]
    works = [dist.all_reduce(x, group=comm.group, async_op=True) for x in tensors]
    futures = [work.get_future() for work in works]
    doubled = futures[3].then(lambda f: f.value()[0] * 2)
    sync = torch.ones(10)
    dist.all_reduce(sync, group=comm.group)  # must not overtake
    for work in works:
        work.wait()
        assert work.is_completed()
    total = sum(range(comm.size))
    assert all((x == total).all() for x in tensors)
    assert (doubled.wait() == 2 * total).all()
    assert (sync == comm.size).all()


def _sub_groups(comm: TorchComm) -> None:
    halves = [dist.new_group([r for r in range(comm.size) if r % 2 == h], backend="bagua_net") for h in range(2)]
    x = torch.tensor([float(comm.rank)])
    dist.all_reduce(x, group=halves[comm.rank % 2])
    assert float(x) == sum(r for r in range(comm.size) if r % 2 == comm.rank % 2)


@pytest.mark.parametrize(
    "body",
    [_lists, _strided, _messages, _from_anyone, _complex, _batches, _asynchronous, _sub_groups],
    ids=lambda body: body.__name__,
)
def test_other_calls(body: Callable[[TorchComm], None]) -> None:
    run("bagua_net", 4 if body is _sub_groups else 3, body)


def _in_order_of_start(comm: TorchComm) -> list[int]:
    """Rank 0 waits for a message from anyone with tag 0, then for tags 1 and 0 from rank 1, which sends later."""
    if comm.rank:
        time.sleep(0.3)
        for number, tag in enumerate((0, 1, 0)):
            dist.send(torch.tensor([number]), group=comm.group, group_dst=0, tag=tag)
        return []
    came = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    works = [comm.group.recv_anysource([came[0]], 0)]
    works += [dist.irecv(x, group=comm.group, group_src=1, tag=tag) for x, tag in zip(came[1:], (1, 0), strict=True)]
    for work in works:
        work.wait()
    return [int(x) for x in came]


def test_a_message_from_anyone_is_not_taken_by_a_receive_that_is_started_later() -> None:
    assert run("bagua_net", 2, _in_order_of_start)[0] == [0, 1, 2]


def _from_who_is_left(comm: TorchComm) -> tuple[int, str, float]:
    """Rank 1 leaves at once, rank 2 after a message."""
    if comm.rank == 2:
        time.sleep(0.5)
        dist.send(torch.ones(1), group=comm.group, group_dst=0)
    if comm.rank:
        comm.abandon()
        return 0, "", 0.0
    sender, begun = dist.recv(torch.zeros(1), group=comm.group), time.monotonic()
    with pytest.raises(RuntimeError) as failure:
        dist.recv(torch.zeros(1), group=comm.group)
    return sender, str(failure.value), time.monotonic() - begun


def test_a_message_from_anyone_is_waited_for_until_nobody_is_left() -> None:
    sender, said, seconds = run("bagua_net", 3, _from_who_is_left, timeout=60.0)[0]
    assert sender == 2 and said.startswith("bagua_net message: peer 127.0.0.1") and seconds < 30


def _what_a_rank_left_behind(comm: TorchComm) -> float:
    """Rank 1 sends and leaves; rank 0 takes that only after a message from anyone, which is rank 2's."""
    if comm.rank:
        time.sleep(comm.rank - 1.0)
        dist.send(torch.tensor([float(comm.rank)]), group=comm.group, group_dst=0, tag=7 if comm.rank == 1 else 0)
        comm.abandon()
        return 0.0
    assert dist.recv(torch.zeros(1), group=comm.group) == 2
    dist.recv(x := torch.zeros(1), group=comm.group, group_src=1, tag=7)
    return float(x)


def test_a_message_of_a_rank_that_left_is_there_after_one_from_anyone() -> None:
    assert run("bagua_net", 3, _what_a_rank_left_behind)[0] == 1


def _beside_another_thread(comm: TorchComm) -> float:
    """While one thread waits for anyone's message with tag 0, another receives 60 with tag 1 that have long arrived."""
    if comm.rank:
        for _ in range(60):
            dist.send(torch.ones(1), group=comm.group, group_dst=0, tag=1)
        dist.recv(torch.zeros(1), group=comm.group, group_src=0)
        dist.send(torch.ones(1), group=comm.group, group_dst=0)
        return 0.0
    anyone = comm.group.recv_anysource([torch.zeros(1)], 0)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(anyone.wait)
        time.sleep(0.3)
        begun = time.monotonic()
        for _ in range(60):
            dist.recv(torch.zeros(1), group=comm.group, group_src=1, tag=1)
        took = time.monotonic() - begun
        dist.send(torch.ones(1), group=comm.group, group_dst=1)
        waiting.result()
    return took


def test_messages_that_have_arrived_are_taken_at_once_beside_a_thread_that_waits_for_anyone() -> None:
    assert run("bagua_net", 2, _beside_another_thread)[0] < 3, "a nap of the waiting thread is 0.1 s long"


def _same_bits(comm: TorchComm) -> list[bytes]:
    found = []
    for count in SIZES:
        x = _data(comm.rank, count, torch.float32)
        dist.all_reduce(x, group=comm.group)
        found.append(x.numpy().tobytes())
    return found


@pytest.mark.parametrize("size", [3, 4, 8])
def test_all_ranks_get_the_same_bits(size: int) -> None:
    first, *others = run("bagua_net", size, _same_bits)
    assert all(other == first for other in others)
