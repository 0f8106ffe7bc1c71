"""The torch.distributed backend where ranks are late, slow or gone; and in a script of one's own."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_bench.comm.torch_groups import TorchComm
from tests.integration.cli import python
from tests.ranks import outcomes, run

HOME = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("built")

LIMIT = 2.0  # seconds, of the groups whose time-out counts
_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; bytes/s


def _late(comm: TorchComm) -> float:
    group = dist.new_group(backend="bagua_net", timeout=timedelta(seconds=LIMIT))
    took = 0.0
    if comm.rank == 0:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="timed out"):
            dist.all_reduce(torch.ones(10), group=group)
        took = time.monotonic() - began
    dist.barrier()  # over gloo: rank 1 lives, and comes nowhere else
    return took


def test_a_rank_that_does_not_come_is_a_time_out() -> None:
    assert 0.9 * LIMIT < run("bagua_net", 2, _late)[0] < 2.5 * LIMIT


def _crawl(comm: TorchComm) -> float:
    group = dist.new_group(backend="bagua_net", timeout=timedelta(seconds=LIMIT))
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as end:
            end.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 10**6)
    x = torch.full((5_000_000,), float(comm.rank))
    began = time.monotonic()
    dist.all_reduce(x, group=group)
    assert x.eq(1.0).all()
    return time.monotonic() - began


def test_a_slow_network_is_no_time_out_while_anything_moves() -> None:
    """20 MB at 1 MB/s for each of four streams."""
    assert min(run("bagua_net", 2, _crawl)) > 2 * LIMIT


def _die(comm: TorchComm, lent: bool) -> float:
    x = torch.ones(3_000_000 if lent else 1_000_000)

    def moves() -> None:
        if lent:
            dist.all_gather([torch.empty_like(x) for _ in range(comm.size)], x, group=comm.group)
        else:
            dist.all_reduce(x, group=comm.group)

    moves()
    if comm.rank == 1:
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"peer|stream"):
        for _ in range(1000):
            moves()
    return time.monotonic() - began


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("lent", [False, True], ids=["copied", "lent"])
def test_a_rank_that_dies_is_an_error_within_a_second(size: int, lent: bool) -> None:
    survivors = outcomes("bagua_net", size, _die, lent)
    del survivors[1]
    assert all(isinstance(seconds, float) and seconds < 1.0 for seconds in survivors)


def _die_under_ddp(comm: TorchComm) -> str:
    """DDP's reducer waits for futures in C++, and takes their values for tensors."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)), process_group=comm.group)
    model(torch.ones(4, 300)).sum().backward()
    if comm.rank == 1:
        os._exit(1)
    with pytest.raises(RuntimeError) as raised:
        for _ in range(100):
            model(torch.ones(4, 300)).sum().backward()
    return str(raised.value)


def test_a_rank_that_dies_is_an_error_of_ddp() -> None:
    survivor, _ = outcomes("bagua_net", 2, _die_under_ddp)
    assert isinstance(survivor, str), survivor
    assert re.search(r"bagua_net (all_reduce|broadcast): .*(peer|stream)", survivor)


def _late_future(comm: TorchComm) -> None:
    group = dist.new_group(backend="bagua_net", timeout=timedelta(seconds=LIMIT))
    if comm.rank == 1:
        dist.barrier()  # over gloo: it lives until rank 0 has seen all
        return
    works = [dist.all_reduce(torch.ones(10), group=group, async_op=True) for _ in range(2)]
    early = works[0].get_future()
    with pytest.raises(RuntimeError, match="timed out"):
        early.wait()
    with pytest.raises(RuntimeError):
        works[1].wait()
    for future in (early.then(lambda f: f.value()), works[1].get_future()):  # asked for before it failed, and after
        with pytest.raises(RuntimeError, match="bagua_net all_reduce"):
            future.wait()
    dist.barrier()


def test_the_future_of_what_failed_is_an_error() -> None:
    run("bagua_net", 2, _late_future)


def _refuses(comm: TorchComm) -> None:
    with pytest.raises(ValueError, match="cannot reduce"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group=comm.group)


def test_what_cannot_be_reduced_is_named() -> None:
    run("bagua_net", 2, _refuses)


SCRIPT = """
import torch, torch.distributed as dist
import bagua_bench.transport
dist.init_process_group("bagua_net")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
others = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(others, weights)
assert all(torch.equal(weights, other) for other in others)
assert dist.get_backend() == "bagua_net"
dist.destroy_process_group()
print("equal")
"""


def test_in_a_script_of_one_s_own_with_ddp(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = python(tmp_path, *torchrun, "own.py", env={"BAGUA_NET_INTERFACES": "lo", "PYTHONPATH": str(HOME)})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
    assert done.stderr.count("bagua_net in use: 2 ranks, 4 streams to every rank over lo") == 1
