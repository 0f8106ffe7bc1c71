"""Data for one pass, engines beside each other, engines that have ended, and refused arguments."""

from __future__ import annotations

import copy
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from algorithms.async_model_average import AsyncModelAverage
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.watch import release, take
from tests.habits import ALL, Make, adam, alone, data, loss, network, sgd, train, weights
from tests.ranks import run

PF_EXITING = 0x4  # linux/sched.h


def perturbed(comm: CountedComm, make: Make) -> Tensor:
    """Gradients at other weights than those that are trained."""
    net = network()
    with Engine(net, sgd(net), make(), comm) as engine:
        for k in range(5):
            kept = [p.data for p in net.parameters()]
            for p in net.parameters():
                p.data = p.data + 0.1
            loss(net, data(comm.rank, k)).backward()
            for p, old in zip(net.parameters(), kept, strict=True):
                p.data = old
            engine.step()
        with engine.paused():
            return weights(net)


def perturbed_by_hand() -> Tensor:
    net = network()
    for k in range(5):
        moved = copy.deepcopy(net)
        for p in moved.parameters():
            p.data += 0.1
        (sum(loss(moved, data(rank, k)) for rank in range(2)) / 2).backward()
        for p, q in zip(net.parameters(), moved.parameters(), strict=True):
            p.data -= 0.1 * q.grad
    return weights(net)


def test_data_that_is_replaced_for_one_pass_only() -> None:
    for got in run("threads", 2, perturbed, GradientAllReduce):
        torch.testing.assert_close(got, perturbed_by_hand())
    pairs = torch.stack(run("threads", 2, perturbed, Decentralized)).mean(0)
    assert float((pairs - perturbed_by_hand()).norm()) < 0.2 * float((perturbed_by_hand() - weights(network())).norm())


def test_two_engines_do_not_share_parameters() -> None:
    trunk, heads = nn.Linear(6, 5), [nn.Linear(5, 1), nn.Linear(5, 2)]
    actor, critic = (nn.Sequential(trunk, head) for head in heads)
    engine = Engine(actor, sgd(actor), GradientAllReduce(), alone())
    with pytest.raises(ValueError, match=r"0\.weight: another Engine trains it"):
        Engine(critic, sgd(critic), GradientAllReduce(), alone())
    with pytest.raises(ValueError, match="another Engine trains it"):
        Engine(actor, sgd(actor), GradientAllReduce(), alone())
    engine.close()
    Engine(critic, sgd(critic), GradientAllReduce(), alone()).close()


@pytest.mark.parametrize("make", ALL[:1] + ALL[3:])
def test_an_engine_that_was_closed_says_so(make: Make) -> None:
    net = network()
    with Engine(net, adam(net), make(), alone()) as engine:
        train(engine, engine.comm, 1)
    threads = threading.active_count()
    for use in (engine.step, engine.restart, engine.rebuild, engine.give_up, lambda: engine.paused().__enter__()):
        with pytest.raises(RuntimeError, match="the engine is closed"):
            use()
    loss(net, data(0, 0)).backward()
    assert threading.active_count() == threads


def advised(comm: CountedComm, make: Make) -> Tensor:
    """An error says to call `rebuild()`; it is called right then."""
    net = network()
    net[0].requires_grad_(False)
    with Engine(net, sgd(net), make(), comm) as engine:
        net(data(comm.rank, 0))  # a training forward, to see a shape
        net[0].requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"engine\.rebuild\(\)"):
            train(engine, comm, 1)
        net.zero_grad()
        engine.rebuild()
        train(engine, comm, 3)
        with engine.paused():
            return weights(net)


@pytest.mark.parametrize("make", [GradientAllReduce, Decentralized, LowPrecisionDecentralized])
def test_the_advice_to_rebuild_can_be_followed(make: Make) -> None:
    for w in run("threads", 2, advised, make):
        assert not torch.equal(w[:35], weights(network())[:35])


def test_a_pause_within_a_pass_is_refused_where_averages_would_change_its_weights() -> None:
    net = network()
    with Engine(net, sgd(net), AsyncModelAverage(interval_ms=1), alone()) as engine:
        value = loss(net, data(0, 0))
        with pytest.raises(RuntimeError, match="between a training forward and step"), engine.paused():
            pass
        value.backward()
        engine.step()


def limits(comm: CountedComm) -> None:
    Engine(net := network(), sgd(net), GradientAllReduce(), comm, max_grad_norm=1.0 + comm.rank)


def test_ranks_with_different_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_grad_norm=1\.0, rank 1 has max_grad_norm=2\.0"):
        run("threads", 2, limits)


def test_what_is_no_optimizer_or_no_algorithm_is_refused() -> None:
    net = network()
    for optimizer in (None, [], net.parameters(), LambdaLR(sgd(net), lambda k: 1.0)):
        with pytest.raises(ValueError, match=r"expected a torch\.optim\.Optimizer"):
            Engine(net, optimizer, GradientAllReduce(), alone())
    with pytest.raises(ValueError, match="expected an algorithm"):
        Engine(net, sgd(net), GradientAllReduce, alone())


def living_threads() -> int:
    """Threads of this process that are not ending: the kernel lists those that were joined for a moment longer."""
    count = 0
    for stat in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):
            count += not int(stat.read_text().rpartition(")")[2].split()[6]) & PF_EXITING
    return count


def engines_of_the_default_group(comm: CountedComm) -> tuple[int, float]:
    """Threads that 5 engines leave behind, and the time-out of their groups."""
    net = network()
    before = threads = 0
    for number in range(6):
        with Engine(net, sgd(net), GradientAllReduce()) as engine:
            train(engine, comm, 1)
            assert isinstance(engine.comm, TorchComm)
            limit = engine.comm.group._get_backend(torch.device("cpu")).options._timeout
        threads = living_threads()
        before = threads if number == 0 else before
    dist.destroy_process_group()
    return threads - before, limit / timedelta(seconds=1)


def test_engines_give_their_groups_back() -> None:
    for threads, limit in run("gloo", 2, engines_of_the_default_group):
        assert threads <= 2
        assert limit == dist.distributed_c10d.default_pg_timeout / timedelta(seconds=1), "the default group's"


def test_threads_may_make_and_close_engines_at_the_same_time() -> None:
    """The engines of all ranks that are threads note in one table which parameters they train."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            owner, parameters = Owner(), {str(k): nn.Parameter(torch.zeros(1)) for k in range(50)}
            for _ in range(50):
                take(parameters, owner)
                release(owner)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns all the time
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []


class Owner:
    """Takes parameters."""
