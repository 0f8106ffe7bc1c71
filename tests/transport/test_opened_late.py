"""Groups whose connections are opened when they are first needed: as right as others, with few sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.transport.native import Group
from tests.ranks import outcomes, run
from tests.transport import test_torch, test_torch_failures
from tools.transport import own_state

pytestmark = pytest.mark.usefixtures("built")

LIMIT = test_torch_failures.LIMIT


def _late_group(eager: int = 0, **options: Any) -> Any:
    os.environ["BAGUA_NET_EAGER"] = str(eager)
    return dist.new_group(backend="bagua_net", **options)


def _partners(group: Any, comm: TorchComm) -> list[int]:
    """Ranks to which there is a connection for collectives."""
    return [peer for peer in range(comm.size) if peer != comm.rank and group.report(peer)]


def _in_late_groups(comm: TorchComm, body: Callable[[TorchComm], Any]) -> Any:
    """What a body returns that makes its groups itself."""
    os.environ["BAGUA_NET_EAGER"] = "0"
    return body(comm)


def _in_late_group(comm: TorchComm, body: Callable[..., None], *args: Any) -> None:
    comm.group = _late_group()
    body(comm, *args)


@pytest.mark.parametrize("count", [6, 300_000])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_collective_gives_what_gloo_gives(size: int, count: int) -> None:
    run("bagua_net", size, _in_late_group, test_torch._beside_gloo, count)


@pytest.mark.parametrize("body", [test_torch._messages, test_torch._from_anyone, test_torch._batches])
def test_messages(body: Callable[[TorchComm], None]) -> None:
    run("bagua_net", 3, _in_late_group, body)


def _whom_it_takes(comm: TorchComm) -> dict[str, list[int]]:
    group = _late_group()
    found = {}

    def note(stage: str) -> None:
        dist.barrier()  # over gloo: nobody is ahead
        found[stage] = _partners(group, comm)
        dist.barrier()

    note("at the start")
    x = torch.full((100_000,), float(comm.rank))
    dist.all_reduce(x, group=group)
    assert x.eq(sum(range(comm.size))).all()
    note("large all-reduce")
    dist.barrier(group=group)
    note("and barrier")
    every = [torch.zeros(5, dtype=torch.int64) for _ in range(comm.size)]
    dist.all_gather(every, torch.full((5,), comm.rank), group=group)
    assert [int(one[0]) for one in every] == list(range(comm.size))
    note("and small all-gather")
    return found


@pytest.mark.parametrize(("size", "most"), [(16, (0, 4, 4, 7)), (11, (0, 2, 5, 10))])
def test_only_those_that_are_needed(size: int, most: tuple[int, ...]) -> None:
    """16 ranks: pairs at distances 1, 2, 4, 8; to gather, both directions. 11: a ring; eight in pairs, three guests."""
    for found in run("bagua_net", size, _whom_it_takes):
        counts = [len(partners) for partners in found.values()]
        assert counts == sorted(counts)
        assert all(count <= limit for count, limit in zip(counts, most, strict=True)), found
        assert counts[1] > 0


def _whom_a_small_group_has(comm: TorchComm) -> tuple[int, int]:
    return len(_partners(_late_group(comm.size), comm)), len(_partners(_late_group(comm.size - 1), comm))


def test_a_small_group_has_all_from_the_start() -> None:
    assert run("bagua_net", 3, _whom_a_small_group_has) == [(2, 0)] * 3


def _all_at_once(comm: TorchComm, rounds: int) -> None:
    """Both ends of every pair need it at the same moment, on both lanes."""
    for number in range(rounds):
        group = _late_group(timeout=timedelta(seconds=30))
        others = [peer for peer in range(comm.size) if peer != comm.rank]
        out = {peer: torch.zeros(10, dtype=torch.int64) for peer in others}
        sent = torch.full((10,), comm.rank + number)
        dist.barrier()  # over gloo
        works = [dist.irecv(out[peer], group=group, group_src=peer) for peer in others]
        works += [dist.isend(sent, group=group, group_dst=peer) for peer in others]
        swapped = torch.zeros(comm.size, dtype=torch.int64)
        dist.all_to_all_single(swapped, torch.full((comm.size,), comm.rank), group=group)
        for work in works:
            work.wait()
        assert swapped.tolist() == list(range(comm.size))
        assert all(int(got[0]) == peer + number for peer, got in out.items())
        dist.barrier()
        dist.destroy_process_group(group)


def test_ranks_that_need_each_other_at_once_get_one_connection() -> None:
    run("bagua_net", 4, _all_at_once, 25)


def _gone(comm: TorchComm, dies: int) -> tuple[float, str]:
    group = _late_group(timeout=timedelta(seconds=60))
    dist.barrier()
    if comm.rank == dies:
        os._exit(1)
    time.sleep(0.5)  # until it is dead
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(torch.ones(100_000), group=group)
    return time.monotonic() - began, str(raised.value)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_died_before_it_was_needed_is_an_error_at_once(dies: int) -> None:
    results = outcomes("bagua_net", 2, _gone, dies)
    seconds, text = results[1 - dies]
    assert seconds < 1.0, results
    assert f"rank {dies} is gone" in text


def _dies(comm: TorchComm, dies: int) -> float:
    """A rank ends at whatever point of its peers' first calls it happens to be."""
    group = _late_group(timeout=timedelta(seconds=60))
    dist.barrier()
    if comm.rank == dies:
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        for _ in range(3):
            dist.all_reduce(torch.ones(100_000), group=group)
    return time.monotonic() - began


@pytest.mark.parametrize(("size", "dies", "times"), [(2, 1, 8), (2, 0, 3), (6, 3, 2)])
def test_a_death_while_connections_are_opened_is_noticed_by_all(size: int, dies: int, times: int) -> None:
    for _ in range(times):
        survivors = outcomes("bagua_net", size, _dies, dies)
        del survivors[dies]
        assert all(isinstance(seconds, float) and seconds < 3.0 for seconds in survivors), survivors


def _waits_for_anyone(comm: TorchComm) -> float:
    group = _late_group(timeout=timedelta(seconds=60))
    dist.barrier()
    if comm.rank == 2:
        dist.destroy_process_group(group)
    dist.barrier()
    spent = 0.0
    if comm.rank == 0:
        x, began = torch.zeros(3), time.process_time()
        dist.recv(x, group=group)
        spent = time.process_time() - began
        assert x.eq(1).all()
    elif comm.rank == 1:
        time.sleep(2.0)
        dist.send(torch.ones(3), group=group, group_dst=0)
    dist.barrier()
    return spent


def test_nobody_is_busy_waiting_for_ranks_that_have_left() -> None:
    assert run("bagua_net", 3, _waits_for_anyone)[0] < 0.6, "of two seconds"


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        (0, r"ranks 1, 2 have not connected to rank 0 at 127\.0\.0\.1:\d+ within 0\.5 s"),
        (1, r"cannot connect to 127\.0\.0\.1:\d+ within 0\.5 s: no answer"),
    ],
)
def test_a_group_that_does_not_come_together_says_who_is_missing_and_leaves_nothing(
    rank: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAGUA_NET_INTERFACES", "lo")
    threads = own_state.threads()
    groups = [Group(number, 3) for number in range(3)]
    with pytest.raises(RuntimeError, match=error):
        groups[rank].join([group.handle for group in groups], 0.5)
    assert own_state.threads() <= threads
    for group in groups:
        group.close()


def test_a_rank_that_does_not_come_is_a_time_out() -> None:
    assert 0.9 * LIMIT < run("bagua_net", 3, _in_late_groups, test_torch_failures._late)[0] < 2.5 * LIMIT
