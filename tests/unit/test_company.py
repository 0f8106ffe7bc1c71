"""Companies of ranks: they end for all at once, one way or the other, and the next one goes on from the mean."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from algorithms.async_model_average import AsyncModelAverage
from algorithms.base import Algorithm
from algorithms.decentralized import Decentralized
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_bench import Company, Course, Engine, Members
from bagua_bench.comm.counted import CommError
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.elastic.members import Changed
from tasks.base import Position
from tests.ranks import outcomes, run

BACKENDS = ["gloo", "bagua_net"]
QUICK = {"beat": 0.1, "patience": 5.0}
LIMIT = 200.0  # seconds of time-out: what fails because a rank has gone fails long before


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that none of the ranks keeps."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def joined(comm: TorchComm, port: int) -> Members:
    """A member, in a process that had a default group."""
    comm.close()
    dist.destroy_process_group()
    return Members(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False), **QUICK)


def breaks_up(comm: TorchComm, port: int, backend: str, dies: bool) -> tuple[str, float, int]:
    with joined(comm, port) as members:
        met = members.meet(wait_for=3, seconds=60.0)
        assert met is not None and met.size == 3
        begun, said = time.monotonic(), ""
        try:
            with Company(members, met, backend, LIMIT) as company:
                company.comm.barrier()
                begun = time.monotonic()
                if met.rank == 2:
                    time.sleep(0.5)
                    if dies:
                        os._exit(1)
                    raise Changed("it wants to go on with others")
                company.comm.all_reduce(torch.ones(10))  # waits for rank 2
        except (Changed, CommError) as error:
            said = type(error).__name__
        took = time.monotonic() - begun
        met = members.meet()
        assert met is not None
        with Company(members, met, backend, LIMIT) as company:
            company.comm.all_reduce(ones := torch.ones(1))
        assert int(ones) == met.size
        return said, took, met.size


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_of_the_others_fail_when_a_rank_leaves(port: int, backend: str, dies: bool) -> None:
    results = outcomes("gloo", 3, breaks_up, port, backend, dies)
    left = [one for one in results if not isinstance(one, BaseException)]
    assert len(left) == (2 if dies else 3), results
    assert sorted(said for said, _, _ in left) == (["CommError"] * 2 if dies else ["Changed", "CommError", "CommError"])
    assert {size for *_, size in left} == {len(left)}
    assert max(took for _, took, _ in left) < LIMIT / 2


def dies_before_it_connects(comm: TorchComm, port: int) -> tuple[str, int]:
    with joined(comm, port) as members:
        met = members.meet(wait_for=3, seconds=60.0)
        assert met is not None and met.size == 3
        if met.rank == 1:
            os._exit(1)
        with pytest.raises(CommError) as failure:
            Company(members, met, timeout=5.0)
        met = members.meet()
        assert met is not None
        with Company(members, met, timeout=LIMIT) as company:
            company.comm.all_reduce(ones := torch.ones(1))
        assert int(ones) == met.size
        return str(failure.value), met.size


def test_a_rank_that_dies_before_it_connects_costs_the_others_a_time_out_at_most(port: int) -> None:
    results = outcomes("gloo", 3, dies_before_it_connects, port)
    left = [one for one in results if not isinstance(one, BaseException)]
    assert [size for _, size in left] == [2, 2], results
    assert all(said.startswith("init_process_group failed: ") for said, _ in left)


def evens_out(comm: TorchComm, port: int) -> tuple[int, list[Tensor], Tensor | None, int]:
    """Ranks 0 and 1 have trained; rank 2 comes new, though it is the first in the company."""
    trained, number = comm.rank != 2, float(comm.rank)
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    if comm.rank != 2:
        comm.barrier()  # the new one is a member first
    with joined_after(comm, port) as members:
        nn.init.constant_(model[0].weight, number)
        model[1].num_batches_tracked.fill_(7 + comm.rank)
        if trained:
            model[0].weight.grad = torch.full((1, 2), number + 1)
            optimizer.step()
            model[0].weight.grad = torch.ones(1, 2)  # of a step that failed
            nn.init.constant_(model[0].weight, number)
        met = members.meet(wait_for=3, seconds=60.0)
        assert met is not None
        with Company(members, met, timeout=LIMIT) as company:
            company.even_out(model, optimizer, trained)
        momentum = optimizer.state[model[0].weight].get("momentum_buffer")
        assert model[0].weight.grad is None
        return met.rank, [model[0].weight.detach()], momentum, int(model[1].num_batches_tracked)


def joined_after(comm: TorchComm, port: int) -> Members:
    if comm.rank == 2:
        members = Members(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False), **QUICK)
        comm.barrier()
        comm.close()
        dist.destroy_process_group()
        return members
    return joined(comm, port)


def test_models_become_the_mean_of_those_that_have_trained(port: int) -> None:
    results = run("gloo", 3, evens_out, port)
    assert results[2][0] == 0  # it came first, and knows nothing
    trained = results[:2]
    first = min(trained, key=lambda one: one[0])
    for _, (weight,), momentum, batches in results:
        assert torch.equal(weight, torch.full((1, 2), 0.5))
        assert momentum is not None and batches == first[3]
    assert torch.equal(results[2][2], first[2])
    assert torch.equal(results[0][2], torch.full((1, 2), 1.0)) and torch.equal(results[1][2], torch.full((1, 2), 2.0))


def goes_on(comm: TorchComm, port: int, algorithm: type[Algorithm], options: dict[str, Any]) -> tuple[Any, ...]:
    """Rank 1 dies after step 5; the others train on, with what all have learned and without a sample left out.

    Where nobody waits for it they are ahead, but not at the end before it is dead.
    """
    dies, seen = comm.rank == 1, list[tuple[int, int]]()
    with joined(comm, port) as members:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        course = Course(members, 10_000, 4, [])
        begins = []
        while (met := members.meet(wait_for=3, seconds=60.0)) is not None:
            try:
                with Company(members, met, timeout=LIMIT) as company:
                    company.even_out(model, optimizer, course.steps > 0)
                    course.begin(met)
                    begins.append((met.size, course.steps, course.position))
                    with Engine(model, optimizer, algorithm(**options), company.comm) as engine:
                        engine.count_from(course.steps)
                        while engine.steps < 60:
                            inputs = torch.randn(4, 4)
                            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
                            engine.step()
                            seen.append((met.number, engine.steps))
                            course.stepped()
                            time.sleep(0.02 if met.number or engine.steps < 20 else 0.5)
                            if dies and engine.steps == 5:
                                while members._pulse.last(members.name) != members.note:
                                    time.sleep(0.01)
                                os._exit(1)
                        engine.settle()
                    members.finish()
            except (Changed, CommError) as error:
                course.failed(error)
        return begins, seen, float((model.weight - 1).norm())


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (Decentralized, {}),
        (LowPrecisionDecentralized, {}),
        (AsyncModelAverage, {"interval_ms": 5.0}),
        (AsyncModelAverage, {"interval_ms": 5.0, "warmup_steps": 10}),
    ],
    ids=["decentralized", "low precision", "async", "async warming up"],
)
def test_ranks_that_are_left_train_on(port: int, algorithm: type[Algorithm], options: dict[str, Any]) -> None:
    begun = time.monotonic()
    results = outcomes("gloo", 3, goes_on, port, algorithm, options, timeout=150.0)
    assert time.monotonic() - begun < LIMIT / 2, "nobody waits for a time-out"
    left = [one for one in results if not isinstance(one, BaseException)]
    assert len(left) == 2, results
    assert left[0][0] == left[1][0], "they agree on where they begin"
    (first, begun, at), *_, (size, steps, position) = left[0][0]
    assert (first, begun, at) == (3, 0, Position()) and size == 2
    taken = [max((step for number, step in seen if number == 0), default=0) for _, seen, _ in left]
    assert steps == max(taken)
    # rank 1 told of its 5 steps; what all have taken in step comes first, then what some are ahead
    assert position.number(10_000) == 4 * (sum(taken) + 5)
    for _, seen, distance in left:
        assert seen[-1][1] == 60 and distance < 1.0


def fails(comm: TorchComm, port: int) -> None:
    with joined(comm, port) as members:
        course = Course(members, 100, 1)
        while (met := members.meet(wait_for=2)) is not None:
            try:
                with Company(members, met, timeout=LIMIT):
                    course.begin(met)
                    raise CommError("always the same")
            except CommError as error:
                course.failed(error)


def test_companies_that_end_without_a_step_do_not_go_on_for_ever(port: int) -> None:
    assert [str(one) for one in outcomes("gloo", 2, fails, port)] == ["always the same"] * 2
