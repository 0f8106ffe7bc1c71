"""Callbacks of futures that start and wait for operations themselves, as hooks of DDP do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

from bagua_bench.comm.torch_groups import TorchComm
from tests.ranks import run

pytestmark = pytest.mark.usefixtures("built")
Future = Any
LIMIT = 2.0  # seconds, of the group whose time-out counts


@contextmanager
def _last(comm: TorchComm, rank: int = 0) -> Iterator[None]:
    """One rank enters when all others have left: what they start there ends after they have hung their callbacks on."""
    if comm.rank == rank:
        dist.barrier()
    yield
    if comm.rank != rank:
        dist.barrier()


def _started(comm: TorchComm, count: int) -> tuple[list[Tensor], list[Any]]:
    """So many all-reduces, and what they will fill."""
    tensors = [torch.full((100 + k,), 1.0 + comm.rank) for k in range(count)]
    return tensors, [dist.all_reduce(x, group=comm.group, async_op=True) for x in tensors]


def _waits_in_a_callback(comm: TorchComm, how: str) -> None:
    b = torch.full((10,), float(comm.rank))

    def call_back(future: Future) -> Tensor:
        if how == "plain":
            dist.all_reduce(b, group=comm.group)
        elif how == "work":
            dist.all_reduce(b, group=comm.group, async_op=True).wait()
        else:
            dist.all_reduce(b, group=comm.group, async_op=True).get_future().wait()
        return b + future.value()[0][0]

    with _last(comm):
        (a,), (work,) = _started(comm, 1)
        called_back = work.get_future().then(call_back)
    found = called_back.wait()
    total = comm.size * (comm.size + 1) / 2
    assert (a == total).all()
    assert (found == total + comm.size * (comm.size - 1) / 2).all()


@pytest.mark.parametrize("how", ["plain", "work", "future"])
def test_a_callback_may_wait_for_an_operation_that_it_starts(how: str) -> None:
    run("bagua_net", 2, _waits_in_a_callback, how)


def _chain(comm: TorchComm) -> None:
    """Every callback starts the next operation; each of them stands between two of the outer ones.

    Each outer one gets its callback before the next is started: one that comes after that may come too late.
    """
    seen: list[float] = []

    def step(future: Future) -> Any:
        x = future.value()[0].clone()
        seen.append(float(x[0]))
        if len(seen) % 4 == 0:
            return x
        return dist.all_reduce(x, group=comm.group, async_op=True).get_future().then(step).wait()

    futures = []
    with _last(comm):
        for k in range(3):
            x = torch.full((100 + k,), 1.0 + comm.rank)
            futures.append(dist.all_reduce(x, group=comm.group, async_op=True).get_future().then(step))
    for future in futures:
        future.wait()
    first = comm.size * (comm.size + 1) / 2
    assert seen == [first * comm.size**k for k in range(4)] * 3


def _waits_for_the_queue(comm: TorchComm) -> None:
    """In callbacks of the first: for the third by its work, for the fourth by a future asked for there."""
    total = comm.size * (comm.size + 1) / 2

    def call_back(_: Future) -> bool:
        works[2].wait()
        works[3].get_future().wait()
        return all((x == total).all() for x in tensors[:4])

    with _last(comm):
        tensors, works = _started(comm, 5)
        called_back = works[0].get_future().then(call_back)
    assert called_back.wait()
    works[4].wait()


def _unequal_speed(comm: TorchComm) -> None:
    """Some ranks start the next operation before the callback of the last one runs, others long after it."""
    generator = torch.Generator().manual_seed(comm.rank)
    futures = []
    for k in range(30):
        x, nested = torch.full((50,), float(k)), torch.full((70,), 1000.0 + k)
        pauses = torch.rand(2, generator=generator) * 0.004

        def call_back(future: Future, nested: Tensor = nested, pause: float = float(pauses[0])) -> list[Tensor]:
            time.sleep(pause)
            dist.all_reduce(nested, group=comm.group)
            return [*future.value(), nested]

        futures.append(dist.all_reduce(x, group=comm.group, async_op=True).get_future().then(call_back))
        time.sleep(float(pauses[1]))
    for k, (x, nested) in enumerate(future.wait() for future in futures):
        assert (x == k * comm.size).all()
        assert (nested == (1000 + k) * comm.size).all()


@pytest.mark.parametrize("body", [_chain, _waits_for_the_queue, _unequal_speed], ids=lambda b: b.__name__)
def test_operations_of_callbacks_have_their_place_in_the_order(body: Callable[[TorchComm], None]) -> None:
    run("bagua_net", 3, body)


def _model(comm: TorchComm, hook: Callable[[DistributedDataParallel], None]) -> list[float]:
    """Losses of training under DDP in several buckets; replicas must end equal."""
    torch.manual_seed(1)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=comm.group, bucket_cap_mb=0.02)
    hook(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(comm.rank))
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    others = [torch.empty_like(weights) for _ in range(comm.size)]
    dist.all_gather(others, weights, group=comm.group)
    assert all(torch.equal(weights, other) for other in others)
    return losses


def _power_sgd(comm: TorchComm) -> None:
    def hook(model: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(comm.group, matrix_approximation_rank=2, start_powerSGD_iter=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    losses = _model(comm, hook)
    assert losses[-1] < losses[3] < losses[0], losses


def _quantization(comm: TorchComm) -> None:
    def hook(model: DistributedDataParallel) -> None:
        model.register_comm_hook(comm.group, quantization_hooks.quantization_pertensor_hook)

    losses = _model(comm, hook)
    assert losses[-1] < losses[0], losses


@pytest.mark.parametrize("body", [_power_sgd, _quantization], ids=lambda b: b.__name__)
def test_torch_s_own_hooks_of_ddp_with_several_buckets(body: Callable[[TorchComm], None]) -> None:
    run("bagua_net", 2, body)


def _held_up(comm: TorchComm) -> float:
    group = dist.new_group(backend="bagua_net", timeout=timedelta(seconds=LIMIT))
    if comm.rank == 1:
        dist.barrier()  # over gloo: nothing has ended on rank 0 when it hangs its callback on
    tensors = [torch.ones(10), torch.ones(10)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]
    began = time.monotonic()
    if comm.rank == 0:
        behind = works[1].get_future()
        held = works[0].get_future().then(lambda _: behind.wait())
        dist.barrier()
        with pytest.raises(RuntimeError, match="timed out: a callback"):
            held.wait()
    took = time.monotonic() - began
    with pytest.raises(RuntimeError, match="timed out"):
        works[1].wait()
    dist.barrier()  # what rank 0 does next ends the connections, on which rank 1 waited for its own time-out
    with pytest.raises(RuntimeError, match=r"aborted|timed out"):
        dist.all_reduce(tensors[0], group=group)
    return took


def test_a_callback_that_waits_for_what_it_holds_up_is_a_time_out() -> None:
    """Its future was asked for outside, so that nobody knows that the callback waits for it."""
    assert 0.9 * LIMIT < run("bagua_net", 2, _held_up)[0] < 4 * LIMIT


def _after_the_end(comm: TorchComm) -> None:
    group = dist.new_group(backend="bagua_net")
    group.shutdown()
    with pytest.raises(RuntimeError, match="has been shut down"):
        dist.all_reduce(torch.ones(3), group=group)


def test_a_group_that_was_shut_down_says_so() -> None:
    run("bagua_net", 2, _after_the_end)
