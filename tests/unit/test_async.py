"""Asynchronous model average: bookkeeping, races, stopping (docs/algorithms.md, Async model average)."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from algorithms.async_model_average import AsyncModelAverage
from algorithms.base import Bucket, Message, Op
from bagua_bench.comm import CommError, CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine
from tests.linear import Linear
from tests.ranks import outcomes, run

LR = 0.125
KINDS = [("threads", 2), ("threads", 3), ("gloo", 2)]


class Slow(CountedComm):
    """A communicator that dawdles before and after every all-reduce."""

    def __init__(self, comm: CountedComm, longest: float) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm, self.longest = comm, longest
        self.random = random.Random(comm.rank)

    def _all_reduce(self, x: Tensor, op: Op) -> None:
        time.sleep(self.random.random() * self.longest)
        self.comm.all_reduce(x, op)
        time.sleep(self.random.random() * self.longest)

    def _broadcast(self, x: Tensor, src: int) -> None:
        self.comm.broadcast(x, src)

    def barrier(self) -> None:
        self.comm.barrier()

    def _reduce(self, x: Tensor, dst: int, op: Op) -> None:
        raise NotImplementedError

    def _all_to_all(self, x: Tensor, out: Tensor) -> None:
        raise NotImplementedError

    def _all_gather(self, x: Tensor, out: Tensor) -> None:
        raise NotImplementedError

    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor:
        raise NotImplementedError

    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        raise NotImplementedError

    def _subgroup(self, ranks: tuple[int, ...]) -> CountedComm:
        raise NotImplementedError

    def _twin(self, number: int) -> CountedComm:
        return self


def make(comm: CountedComm, interval_ms: float, warmup_steps: int = 0) -> Engine:
    model = Linear(24).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return Engine(model, optimizer, AsyncModelAverage(interval_ms, warmup_steps), comm)


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(24, generator=torch.Generator().manual_seed(1000 * rank + step), dtype=torch.float64)


def one_step(engine: Engine, g: Tensor, think: float = 0.0) -> None:
    """Forward, a moment of thought, backward and the optimizer; the weights must not move under the passes."""
    loss = engine.model(g)
    before = engine.model.x.detach().clone()
    time.sleep(think)
    assert torch.equal(engine.model.x.detach(), before), "the weights changed between forward and backward"
    loss.backward()
    engine.step()


def rounds_by_hand(comm: CountedComm) -> tuple[Tensor, Tensor]:
    algorithm = AsyncModelAverage(1)
    x = torch.full((4,), float(comm.rank))
    bucket = Bucket("all", [], x, torch.empty(0))
    algorithm.start([bucket], comm, torch.optim.SGD([torch.zeros(1)]))
    algorithm.prepare(bucket, 1)
    x += 100 + comm.rank  # what training does between snapshot and application
    algorithm.communicate(bucket, comm, 1)
    before = x.clone()
    algorithm.finish(bucket, 1)
    return before, x


@pytest.mark.parametrize(("kind", "size"), [("threads", 1), *KINDS])
def test_a_round_keeps_local_progress(kind: str, size: int) -> None:
    """x + s/n - c: the snapshot's distance from the mean goes, the progress since stays."""
    mean = (size - 1) / 2
    for rank, (before, after) in enumerate(run(kind, size, rounds_by_hand)):
        assert torch.equal(before, torch.full((4,), 100.0 + 2 * rank))
        assert torch.equal(after, before + mean - rank)


def race(comm: CountedComm, steps: Sequence[int], longest: float) -> tuple[Tensor, Tensor, float]:
    """So many steps per rank; the start, the end, and how far a pause moves the weights of this rank."""
    chance = random.Random(comm.rank)
    with make(Slow(comm, longest), interval_ms=0.1) as engine:
        start = engine.model.x.detach().clone()
        for step in range(steps[comm.rank]):
            one_step(engine, gradient(comm.rank, step), chance.random() * 0.004)
            time.sleep(chance.random() * 0.002)
        with engine.paused():
            end = engine.model.x.detach().clone()
            time.sleep(0.02)
            still = float((engine.model.x.detach() - end).abs().max())
        return start, end, still


@pytest.mark.parametrize(("kind", "size"), KINDS)
@pytest.mark.parametrize("steps", [(200, 200, 200), (200, 250, 230)], ids=["equal", "unequal"])
def test_no_update_is_lost_or_applied_twice(kind: str, size: int, steps: tuple[int, ...]) -> None:
    """Averaging never moves the mean of the models, so it is the start minus the mean of all optimizer steps."""
    results = run(kind, size, race, steps, 0.003, timeout=60)
    taken = [LR * sum(gradient(rank, step) for step in range(steps[rank])) for rank in range(size)]
    expected = results[0][0] - torch.stack(taken).mean(0)
    ends = torch.stack([end for _, end, _ in results])
    torch.testing.assert_close(ends.mean(0), expected, rtol=0, atol=1e-10)
    alone = torch.stack([results[0][0] - progress for progress in taken])
    assert (ends - expected).norm() < 0.5 * (alone - expected).norm(), "the models were not averaged"
    assert [still for *_, still in results] == [0.0] * size


def alone(comm: CountedComm) -> Tensor:
    with make(comm, interval_ms=0.1) as engine:
        start = engine.model.x.detach().clone()
        for _ in range(20):
            one_step(engine, torch.zeros(24, dtype=torch.float64), 0.001)
        return engine.model.x.detach() - start


def test_a_single_rank_changes_nothing() -> None:
    assert torch.equal(run("threads", 1, alone)[0], torch.zeros(24, dtype=torch.float64))


def stop_and_go(comm: CountedComm, times: int) -> int:
    chance = random.Random(17 + comm.rank)
    with make(Slow(comm, 0.001), interval_ms=0.5) as engine:
        for k in range(times):
            one_step(engine, gradient(comm.rank, k))
            time.sleep(chance.random() * 0.004)
            with engine.paused(), engine.paused():  # stopping what has stopped does nothing
                before = engine.model.x.detach().clone()
                time.sleep(0.001)
                assert torch.equal(engine.model.x.detach(), before), "the weights changed in a pause"
    return times


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_a_hundred_stops_at_random_moments(kind: str, size: int) -> None:
    assert run(kind, size, stop_and_go, 100, timeout=60) == [100] * size


def warm(comm: CountedComm) -> list[Tensor]:
    seen = []
    with make(comm, interval_ms=0.1, warmup_steps=3) as engine:
        for step in range(5):
            one_step(engine, gradient(comm.rank, step))
            with engine.paused() if step < 3 else nullcontext():  # nobody is a step ahead, and in an average already
                seen.append(engine.model.x.detach().clone())
    return seen


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_warm_up_is_gradient_allreduce(kind: str, size: int) -> None:
    results = run(kind, size, warm)
    x = torch.linspace(-1, 1, 24).double()
    for step in range(3):
        x = x - LR * torch.stack([gradient(rank, step) for rank in range(size)]).mean(0)
        for seen in results:
            torch.testing.assert_close(seen[step], x, rtol=1e-13, atol=1e-13)
    assert not torch.equal(results[0][4], results[1][4]), "after the warm-up every rank goes its own way"


def fail_in_training(comm: ThreadComm) -> None:
    with make(Slow(comm, 0.002), interval_ms=0.1) as engine:
        for step in range(1000):
            one_step(engine, gradient(comm.rank, step), 0.001)
            if comm.rank == 0 and step == 5:
                raise ArithmeticError("this rank has had enough")


def test_a_failing_rank_ends_everybody() -> None:
    """Rank 0 leaves without waiting; the other sees an error at its next step or stop, not a hang."""
    first, second = outcomes("threads", 2, fail_in_training, timeout=5.0)
    assert isinstance(first, ArithmeticError)
    assert isinstance(second, CommError)


def half(comm: CountedComm) -> None:
    model = Linear(8).half()
    Engine(model, torch.optim.SGD(model.parameters()), AsyncModelAverage(), comm)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float16.*float32"):
        run("threads", 2, half)
