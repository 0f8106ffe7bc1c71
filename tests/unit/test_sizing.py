"""The default bucket size: what is measured, what follows from it, and that a user's own number wins."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.sizing import LEAST, PARTS, Costs, bucket_size, measure
from bagua_bench.simulate.cluster import cluster_of
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.run import simulate
from tests.catalogue import resolved
from tests.ranks import run

MIB = 2**20


def total(model: float, b: float, channels: int, costs: Costs) -> float:
    """The time that the rule estimates for buckets of b bytes (docs/design.md, Bucket size)."""
    one = costs.overhead + b / costs.alone
    return model / b * max(b / costs.together, one / channels) + one


@given(st.integers(10**8, 10**10), st.integers(1, 8), st.floats(1e-5, 1e-1), st.floats(1e7, 1e10), st.floats(1, 8))
def test_no_other_size_is_estimated_to_be_much_better(
    model: int, channels: int, overhead: float, alone: float, more: float
) -> None:
    costs = Costs(overhead, alone, alone * min(more, channels))
    chosen = bucket_size(model, channels, costs)
    assert max(LEAST, model / PARTS) <= chosen <= max(model, LEAST) + 1
    tried = [model / k for k in range(1, PARTS + 1) if model / k >= LEAST]
    best = min(total(model, b, channels, costs) for b in tried)
    margin = 4 * (costs.overhead / max(channels / costs.together - 1 / costs.alone, 1e-30)) / costs.alone
    assert total(model, chosen, channels, costs) <= 1.02 * best + min(margin, best)


def test_the_square_root_and_the_size_that_hides_the_overhead() -> None:
    late = Costs(overhead=0.03, alone=1e9, together=1e9)
    assert bucket_size(10**9, 1, late) == math.ceil(math.sqrt(1e9 * 0.03 * 1e9)), "nothing hides a single channel's"
    assert bucket_size(10**10, 2, late) == 10**10 / PARTS, "never more parts than that"
    assert bucket_size(10**10, 2, replace(late, alone=1e8, together=1e8)) == 10**10 / PARTS
    slow = Costs(overhead=0.03, alone=1e8, together=1e8)
    assert bucket_size(5 * 10**8, 2, slow) == 4 * 0.03 * 1e8, "four times the bytes that hide the overhead"
    windows = Costs(overhead=0.03, alone=1e9, together=2e9)
    assert bucket_size(10**9, 2, windows) == math.ceil(math.sqrt(1e9 * 0.03 * 1e9 / 2)), (
        "a channel limits, not the line"
    )
    assert bucket_size(10**9, 2, Costs(1e-5, 1e9, 1e9)) == math.ceil(1e9 / PARTS)
    assert bucket_size(10**7, 2, Costs(1e-5, 1e9, 1e9)) == LEAST
    assert bucket_size(10**7, 2, Costs(1e-5, 1e9, 1e9), least=10**4) == math.ceil(1e7 / PARTS)


def test_compressed_buckets_are_larger() -> None:
    """What they send is less to hide the overhead behind."""
    slow = Costs(overhead=0.03, alone=1e8, together=1e8)
    assert bucket_size(5 * 10**8, 2, slow) == 4 * 0.03 * 1e8
    assert bucket_size(5 * 10**8, 2, slow, share=0.5) == 2 * 4 * 0.03 * 1e8
    assert bucket_size(5 * 10**8, 2, slow, share=0.1) == math.ceil(math.sqrt(5e8 * 0.015 * 1e8)), "and not beyond that"


def test_what_software_takes_is_not_hidden_by_more_channels() -> None:
    """Four empty messages at once take four times as long as one: each takes what one alone does."""
    late = Costs(overhead=0.03, alone=1e9, together=4e9, several=0.03 / 4)
    busy = replace(late, several=0.03)
    assert bucket_size(10**10, 4, late) == math.ceil(math.sqrt(1e10 * 0.03 / 4 * 1e9))
    assert bucket_size(10**10, 4, busy) == math.ceil(math.sqrt(1e10 * 0.03 * 1e9))


@given(st.floats(1e-5, 0.1), st.integers(2, 8), st.booleans())
def test_what_software_takes_is_measured(overhead: float, channels: int, busy: bool) -> None:
    found = measure(lambda nbytes, number: overhead * (number if busy else 1) + 1e-10 * nbytes, channels, most=2**40)
    assert found.several == pytest.approx(overhead if busy else overhead / channels, rel=0.01)
    assert found.together == pytest.approx(channels * 1e10, rel=0.02), "the line is as fast in both cases"


def test_buckets_that_take_time_from_computing_are_fewer() -> None:
    """A loopback of 1 GB/s where each of them takes 0.4 ms of a core: sqrt(1e8 x 4e-4 x 1e9) bytes."""
    free = Costs(overhead=1e-4, alone=1e9, together=1e9)
    assert bucket_size(10**8, 4, free) == math.ceil(1e8 / PARTS)
    assert bucket_size(10**8, 4, replace(free, occupied=4e-4)) == math.ceil(math.sqrt(1e8 * 4e-4 * 1e9))
    assert bucket_size(10**7, 4, replace(free, occupied=1)) == 10**7
    late = Costs(overhead=0.03, alone=1e9, together=2e9, occupied=4e-4)
    assert bucket_size(10**9, 2, late) == bucket_size(10**9, 2, replace(late, occupied=0)), "these are large anyway"


def occupied(comm: CountedComm, shares_cores: bool) -> float:
    model = nn.Sequential(*(nn.Linear(100_000, 1, bias=False) for _ in range(40)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Engine(model, optimizer, GradientAllReduce(), comm, shares_cores=shares_cores) as engine:
        assert engine.plan.costs is not None
        return engine.plan.costs.occupied


def test_cpu_time_is_measured_where_the_cores_compute() -> None:
    first, second = run("gloo", 2, occupied, True)
    assert first == second > 1e-6
    assert run("gloo", 2, occupied, False) == [0, 0]


@given(st.floats(1e-6, 0.1), st.floats(1e6, 1e11), st.integers(2, 8), st.booleans())
def test_costs_are_measured_whatever_they_are(overhead: float, rate: float, channels: int, shared: bool) -> None:
    def seconds(nbytes: int, number: int) -> float:
        return overhead + nbytes / rate * (number if shared else 1)

    found = measure(seconds, channels, most=2**40)
    assert found.overhead == pytest.approx(overhead, rel=0.01 + 1 / rate / overhead)
    assert found.alone == pytest.approx(rate, rel=0.01)
    assert found.together == pytest.approx(rate * (1 if shared else channels), rel=0.01)


def test_no_message_is_larger_than_the_model_and_a_free_network_has_a_rate() -> None:
    asked: list[int] = []
    found = measure(lambda nbytes, number: asked.append(nbytes) or 1e-3, 2, most=10_000)
    assert max(asked) == 10_000
    assert all(0 < rate < math.inf for rate in (found.alone, found.together))


def trained(comm: CountedComm, elements: int, options: dict[str, int]) -> tuple[int, int, int, int]:
    """Elements of the model's buckets, channels, and elements measured."""
    model = nn.Sequential(*(nn.Linear(elements, 1, bias=False) for _ in range(40)))
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), GradientAllReduce(), comm, **options) as engine:
        assert engine.sending.bucket_size is not None
        return (
            engine.sending.bucket_size,
            engine.sending.buckets,
            engine.sending.channels,
            engine.plan.costs is not None,
        )


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_the_engine_measures_and_all_ranks_choose_the_same(kind: str) -> None:
    (first, second) = run(kind, 2, trained, 100_000, {})
    assert first == second
    size, buckets, channels, measured = first
    assert measured and channels == 4
    assert LEAST <= size <= 40 * 400_000 and buckets >= 1


@pytest.mark.parametrize(
    ("options", "elements", "expected"),
    [
        ({"bucket_size": 3_000_000}, 100_000, (3_000_000, 5, 4, False)),
        ({"bucket_size": 0, "channels": 3}, 100, (0, 40, 3, False)),
        ({}, 1000, (LEAST, 1, 4, False)),
    ],
    ids=["given", "zero", "small"],
)
def test_a_given_number_wins_and_a_small_model_is_one_bucket(
    options: dict[str, int], elements: int, expected: tuple[int, int, int, bool]
) -> None:
    assert run("threads", 2, trained, elements, options) == [expected] * 2


def step(*overrides: str) -> float:
    """Simulated seconds of a step of the last of a few."""
    base = ("mode=simulate", "cluster=4x1", "network.tcp_window=256MiB", "run.steps=2", "run.untimed=1")
    return simulate(resolved(*base, *overrides)).ranks[0].seconds[-1]["step"]


@pytest.mark.parametrize("task", ["vgg16", "bert_large"])
@pytest.mark.parametrize(("rate", "latency"), [*product(("1gbit", "100gbit"), ("0ms", "5ms"))])
def test_simulated_defaults_are_near_the_best_size_and_never_behind_ddp(task: str, rate: str, latency: str) -> None:
    network = [f"task={task}", f"network.bandwidth={rate}", f"network.latency={latency}"]
    ddp = step(*network, "algo=ddp")
    for algo in ("gradient_allreduce", "bytegrad"):
        chosen = step(*network, f"algo={algo}")
        sizes = [step(*network, f"algo={algo}", f"run.bucket_size={size}MiB") for size in (2, 10, 25, 64, 128)]
        assert chosen <= 1.05 * min(sizes)
        assert chosen <= 1.001 * ddp
        assert chosen <= 1.001 * step(*network, f"algo={algo}", "run.channels=1")


def test_a_scale_model_has_the_same_buckets() -> None:
    cell = resolved(
        "mode=simulate",
        "task=vgg16",
        "algo=bytegrad",
        "cluster=4x1",
        "network.latency=5ms",
        "network.bandwidth=10gbit",
        "run.steps=2",
    )
    small = replace(cell, compute=replace(cell.profile, shrink=100.0))
    sending, scaled = simulate(cell).sending, simulate(small).sending
    assert sending is not None and scaled is not None and sending.bucket_size is not None
    assert scaled.bucket_size == pytest.approx(sending.bucket_size, rel=0.01)
    assert (sending.channels, scaled.channels) == (4, 4)
    over_nccl = resolved("mode=simulate", "task=vgg16", "algo=bytegrad", "cluster=bagua_paper", "transport=nccl")
    assert settled(over_nccl, cluster_of(over_nccl)).run.channels == 1
