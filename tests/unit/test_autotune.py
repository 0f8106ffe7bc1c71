"""Autotuning: the search, and an engine that tunes itself while it trains."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.async_model_average import AsyncModelAverage
from algorithms.base import Algorithm, Bucket, Comm
from algorithms.bytegrad import ByteGrad
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam import QAdam
from bagua_bench.advise.proposals import proposed
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.engine.autotune import Autotune
from bagua_bench.engine.buckets import split
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.search import Search
from bagua_bench.results.result import Study, Values
from bagua_bench.simulate.run import simulate
from tests.catalogue import resolved
from tests.ranks import run

MIB = 2**20
SPACE = {"bucket_size_2p": range(10, 32), "hierarchical": range(2)}

Tensors = Sequence[tuple[str, str, int]]
FIVE: Tensors = [("A", "f32", 4), ("B", "f32", 8), ("C", "f32", 12), ("D", "f32", 16), ("E", "f32", 20)]
MIXED: Tensors = [("A", "f32", 4), ("B", "f32", 12), ("C", "f16", 10), ("D", "f16", 14), ("E", "f32", 44)]


def buckets(tensors: Tensors, nbytes: int) -> list[list[str]]:
    return [[tensors[i][0] for i in group] for group in split([(kind, MIB * n) for _, kind, n in tensors], nbytes)]


@pytest.mark.parametrize(
    ("tensors", "order", "expected"),
    [
        (FIVE, "ABCDE", [["A", "B", "C"], ["D"], ["E"]]),
        (MIXED, "ABCDE", [["C", "D"], ["A", "B"], ["E"]]),
        (FIVE, "DEABC", [["D"], ["E"], ["A", "B", "C"]]),
    ],
    ids=["one type", "two types", "as ready"],
)
def test_the_released_service_s_acceptance_cases(tensors: Tensors, order: str, expected: list[list[str]]) -> None:
    """Buckets near 20 MiB score best, and hierarchical ones better by a tenth."""
    ordered = sorted(tensors, key=lambda tensor: order.index(tensor[0]))
    sizes = {name: n for name, _, n in tensors}
    search = Search(SPACE, seed=0, first=[{"bucket_size_2p": 23, "hierarchical": 0}])
    for _ in range(60):
        values = search.ask()
        made = buckets(ordered, 2 ** values["bucket_size_2p"])
        off = sum(abs(sum(sizes[name] for name in bucket) - 20) for bucket in made)
        search.tell(-off * (1.0 if values["hierarchical"] else 1.1))
    assert search.trials[0].values == {"bucket_size_2p": 23, "hierarchical": 0}, "what is given goes first"
    assert buckets(ordered, 2 ** search.best.values["bucket_size_2p"]) == expected
    assert search.best.values["hierarchical"] == 1


def test_a_noisy_function_of_two_variables() -> None:
    chance = random.Random(0)
    search = Search({"x": range(100), "y": range(100)}, seed=0)

    def value(x: int, y: int) -> float:
        return 1 - ((x - 70) / 100) ** 2 - ((y - 20) / 100) ** 2

    for _ in range(30):  # the released optimiser was given 100, to reach 0.8
        values = search.ask()
        search.tell(value(**values) + chance.gauss(0, 0.02))
    assert value(**search.best.values) > 0.95


def test_the_same_seed_proposes_the_same() -> None:
    def proposed(seed: int) -> list[Any]:
        search = Search(SPACE, seed)
        found = []
        for number in range(12):
            found.append(search.ask())
            search.tell(float(number))
        return found

    assert proposed(1) == proposed(1) != proposed(2)


def test_of_settings_that_come_to_the_same_one_is_tried() -> None:
    """Sizes from 2^20 on make one bucket. The best is next to them, and all else is worse than they are."""
    chance = random.Random(0)
    search = Search(SPACE, 0, [{"bucket_size_2p": 30, "hierarchical": 0}], alike=at_most_a_mebibyte)
    tried = set()
    for _ in range(22):
        values = search.ask()
        tried.add(at_most_a_mebibyte(values))
        size = min(values["bucket_size_2p"], 20)
        search.tell((2.0 if size == 19 else size / 20) + chance.gauss(0, 0.01))
    assert len(tried) == 22 == len(search.trials), "all 11 x 2 that differ"
    assert at_most_a_mebibyte(search.ask()) in tried, "and then again"


def test_a_plateau_does_not_hold_the_search() -> None:
    """As where a run began with 1 GiB, more than the model has: 0.1 and 0.2 at random sizes, and twice as much as on
    the plateau three steps below its edge."""
    for seed in range(5):
        search = Search(SPACE, seed, [{"bucket_size_2p": 30, "hierarchical": 0}], alike=at_most_a_mebibyte)
        for _ in range(12):
            size = min(search.ask()["bucket_size_2p"], 20)
            search.tell({17: 2.0, 18: 1.8, 19: 1.4, 20: 1.0}.get(size, 0.01 * size))
        assert search.best.score == 2.0


def at_most_a_mebibyte(values: Values) -> tuple[int, int]:
    return min(values["bucket_size_2p"], 20), values["hierarchical"]


class Slow(GradientAllReduce):
    """Every message takes 10 ms, and 40 more without hierarchy, whatever its size."""

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        time.sleep(0.01 if self.hierarchical or comm.intra is None else 0.05)
        super().communicate(bucket, comm, step)


def layers() -> nn.Module:
    model, chance = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8))), torch.Generator().manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2, generator=chance)
    return model


def trained(comm: CountedComm, steps: int, asked: Autotune | None, options: dict[str, int]) -> dict[str, Any]:
    model, algorithm = layers(), Slow()
    chance = torch.Generator().manual_seed(comm.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Engine(model, optimizer, algorithm, comm, autotune=asked, **options) as engine:  # type: ignore[arg-type]
        tuned = []
        for _ in range(steps):
            tuned.append(engine.tuning)
            model(torch.randn(4, 32, generator=chance)).square().mean().backward()
            engine.step()
        return {
            "weights": [p.detach().clone() for p in model.parameters()],
            "sending": engine.sending,
            "study": engine.study,
            "hierarchical": algorithm.hierarchical,
            "tuning": sum(tuned),
            "names": [name for name, _ in model.named_parameters()],
        }


@pytest.mark.parametrize(("kind", "size", "per_server"), [("gloo", 2, 1), ("threads", 4, 2)])
def test_an_engine_tunes_itself_and_learns_as_before(kind: str, size: int, per_server: int) -> None:
    asked, steps = Autotune(max_samples=10, sample_steps=2, warmup_steps=2), 40
    found = run(kind, size, trained, steps, asked, {"bucket_size": 1024, "channels": 1}, per_server=per_server)
    first, study = found[0], found[0]["study"]
    assert isinstance(study, Study)
    assert all(other["sending"] == first["sending"] for other in found)
    assert all(torch.equal(a, b) for other in found for a, b in zip(first["weights"], other["weights"], strict=True))
    plain = run(kind, size, trained, steps, None, {}, per_server=per_server)[0]
    assert plain["study"] is None and plain["tuning"] == 0
    torch.testing.assert_close(first["weights"], plain["weights"], rtol=1e-4, atol=1e-6)

    assert len(study.trials) == len(study.ends) == 10
    steps = [end - begin for begin, end in pairwise([2, *study.ends])]
    assert steps[0] == 3 and set(steps) <= {1, 3}, "a step is lost with every change, or it is hopeless"
    assert study.ends[-1] == first["tuning"] == 2 + sum(steps)
    assert study.trials[0].values["bucket_size_2p"] == 10 and study.trials[0].values["channels"] == 1
    assert study.best == max(study.trials, key=lambda trial: trial.score).values
    assert first["sending"].bucket_size == 2 ** study.best["bucket_size_2p"]
    assert first["sending"].channels == study.best["channels"]
    assert first["sending"].buckets < 9, "16 messages of 10 ms each are no good setting"
    assert first["hierarchical"] == bool(study.best.get("hierarchical")) == (per_server > 1)
    assert sorted(study.order) == sorted(first["names"])
    assert study.order[0].startswith("7.") and study.order[-1].startswith("0."), "gradients come last layer first"
    assert found[1]["study"].trials == (), "rank 0 has the study"


class Crawling(GradientAllReduce):
    """Every message takes 200 ms: on a busy machine a step of one message may be late by as much again."""

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        time.sleep(0.2)
        super().communicate(bucket, comm, step)


def among_hopeless(comm: CountedComm, sizes: list[int]) -> Study:
    """Tunes over these bucket sizes, on one channel."""
    model, first = layers(), [{"bucket_size_2p": size, "channels": 1} for size in sizes]
    asked = Autotune(max_samples=len(sizes), sample_steps=4, warmup_steps=1, first=first)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.05), Crawling(), comm, autotune=asked) as engine:
        while engine.tuning:
            model(torch.ones(4, 32)).square().mean().backward()
            engine.step()
        assert engine.study is not None
        return engine.study


def test_a_setting_whose_first_step_is_hopeless_gets_no_further_ones() -> None:
    """33 KiB in one bucket, then in 16 of one tensor each, then in two."""
    study = run("threads", 2, among_hopeless, [16, 10, 14])[0]
    assert study.ends == (1 + 5, 1 + 5 + 1, 1 + 5 + 1 + 5)
    best, hopeless, second = (trial.score for trial in study.trials)
    assert hopeless < min(best, second) / 3
    assert study.best["bucket_size_2p"] == 16


def over_streams(comm: CountedComm, asked: Autotune) -> dict[str, Any]:
    """What was tuned, and the streams that are counted and the bytes that were sent, before and at the end."""
    model, chance = layers(), torch.Generator().manual_seed(comm.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with Engine(model, optimizer, GradientAllReduce(), comm, autotune=asked, channels=2) as engine:
        for _ in range(14):
            model(torch.randn(4, 32, generator=chance)).square().mean().backward()
            engine.step()
        assert not engine.tuning
        return {
            "study": engine.study,
            "weights": [p.detach().clone() for p in model.parameters()],
            "streams": {peer: len(found) for peer, found in comm.streams().items()},  # type: ignore[attr-defined]
            "sent": engine.sent(),
            "settings": dict(comm.settings),
        }


@pytest.mark.parametrize("per_server", [1, 2])
def test_streams_and_chunks_of_bagua_net_are_tuned_too(per_server: int) -> None:
    first = [{"streams_2p": 1, "chunk_2p": 15, "channels": 2}, {"streams_2p": 3, "chunk_2p": 22, "channels": 2}]
    asked = Autotune(max_samples=4, sample_steps=2, warmup_steps=1, first=first)
    found = run("bagua_net", 2 * per_server, over_streams, asked, per_server=per_server)
    study, one = found[0]["study"], found[0]
    assert one["settings"] == {"streams_2p": 2, "chunk_2p": 20}, "what the communicator was made with"
    assert [trial.values["streams_2p"] for trial in study.trials[:2]] == [1, 3]
    assert [trial.values["chunk_2p"] for trial in study.trials[:2]] == [15, 22]
    assert study.trials[0].values["bucket_size_2p"] == 16, "the engine's, as none is given, and within what can be had"
    assert {*study.best} == {"bucket_size_2p", "channels", "streams_2p", "chunk_2p"} | (
        {"hierarchical"} if per_server > 1 else set()
    )
    assert all(torch.equal(a, b) for other in found for a, b in zip(one["weights"], other["weights"], strict=True))
    of_engine = study.best["channels"] * 2 ** study.best["streams_2p"]
    assert set(one["streams"].values()) == {2 * 4 + of_engine}, "connections that were tried are closed"
    elements = sum(weight.numel() for weight in one["weights"])
    if per_server == 1:
        assert one["sent"]["flat"] > 14 * 4 * elements, "what closed communicators have sent counts"


def test_buckets_follow_the_order_of_readiness() -> None:
    asked = Autotune(max_samples=1, sample_steps=1, warmup_steps=1, first=[{"bucket_size_2p": 10, "channels": 2}])
    assert all(run("threads", 2, in_order_of_readiness, asked))


class Backwards(nn.Module):
    """Layers are registered last first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))  # type: ignore[no-any-return]


def in_order_of_readiness(comm: CountedComm, asked: Autotune) -> bool:
    model = Backwards()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Engine(model, optimizer, GradientAllReduce(), comm, bucket_size=1, autotune=asked) as engine:
        before = [bucket.params for bucket in engine.buckets]
        for _ in range(4):
            model(torch.randn(4, 32)).square().mean().backward()
            engine.step()
        after = [bucket.params for bucket in engine.buckets]
        return before == [[model.first.weight], [model.last.weight]] and after == before[::-1]


def refused(comm: CountedComm, algorithm: Algorithm) -> str:
    model = layers()
    try:
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm, comm, autotune=Autotune())
    except ValueError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(("size", "algorithm"), [(1, GradientAllReduce()), (2, AsyncModelAverage())])
def test_an_engine_with_nothing_to_tune_says_so(size: int, algorithm: Algorithm) -> None:
    for message in run("threads", size, refused, algorithm):
        assert message == f"autotune: {type(algorithm).__name__} has nothing to tune on {size} ranks"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mode=simulate", "algo=bytegrad"], "a simulated run needs no trials"),
        (["algo=bytegrad", "cluster.servers=1"], "one rank has nothing to tune"),
        (["algo=async"], "averages beside its steps"),
        (["algo=decentralized"], "there is nothing to tune"),
        (["algo=ddp"], "belongs to Bagua's engine"),
        (["algo=bytegrad", "tune.max_samples=0"], "tune.max_samples=0: must be at least 1"),
        (["algo=bytegrad", "tune.advised=30"], "tune.advised=30: allowed: fewer than tune.max_samples"),
        (["algo=bytegrad", "tune.advised=3"], "does not know how long computing takes"),
        (["algo=bytegrad", "transport.chunk=1MiB"], "transport.chunk=1048576: allowed: 16384 to 67108864 bytes with"),
        (["algo=bytegrad", "transport=bagua_net", "transport.chunk=1KiB"], "transport.chunk=1024: allowed: 16384 to"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_configurations_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(resolved("task=vgg16", "task.scale=tiny", "run.autotune=true", "cluster.servers=2", *overrides))
    assert "\n" not in str(caught.value)


def test_the_simulator_s_proposals_are_what_it_finds_fastest() -> None:
    cell = resolved(
        *("mode=emulate", "task=vgg16", "algo=gradient_allreduce", "cluster=4x1", "compute.shrink=100"),
        *("network.bandwidth=1gbit", "network.latency=1ms", "run.autotune=true", "tune.advised=2"),
    )
    validate(cell)
    chosen = proposed(cell)
    assert chosen.run.autotune is not None
    own, *found = chosen.run.autotune.first
    assert own == {} and len(found) == 2, "the engine's own setting goes first"
    assert proposed(resolved("mode=emulate", "task=vgg16", "run.autotune=true")).run.autotune is not None

    def seconds(size: int, channels: int) -> float:
        run = replace(cell.run, bucket_size=size, channels=channels, autotune=None, steps=2, untimed=1)
        return float(simulate(replace(cell, mode="simulate", run=run)).ranks[0].seconds[-1]["step"])

    best, second = (seconds(2 ** one["bucket_size_2p"], one["channels"]) for one in found)
    others = [seconds(2**size, channels) for size in (20, 24, 28) for channels in (1, 2, 4)]
    assert best <= second <= 1.01 * min(others)


def test_an_empty_setting_is_the_engines_own() -> None:
    study = run("threads", 2, among, [{}, {"bucket_size_2p": 12}], {"bucket_size": 2**14, "channels": 3})[0]
    assert [trial.values for trial in study.trials] == [
        {"bucket_size_2p": 14, "channels": 3},
        {"bucket_size_2p": 12, "channels": 3},
    ]


def test_the_engines_own_size_is_tried_as_it_is_and_once() -> None:
    """20,000 bytes are nearest to 2^14: that stands for them, and one more wish for it is the same."""
    asked = [{}, {"bucket_size_2p": 14}, {"bucket_size_2p": 15}]
    sizes = run("threads", 2, sizes_tried, asked, 20_000)[0]
    assert sizes[:2] == [20_000, 2**15] and len(sizes) == 3, "and the third is the search's"
    assert run("threads", 2, sizes_tried, [{}], 500)[0] == [500], "smaller than what the search may choose"


def test_no_two_samples_cut_the_model_alike() -> None:
    cuts = run("threads", 2, cuts_tried, 10)[0]
    assert len(cuts) == 10 == len(set(cuts))


def cuts_tried(comm: CountedComm, samples: int) -> list[tuple[int, ...]]:
    """Of every sample, how many tensors each bucket has, and how many channels have a bucket."""
    model, steps = layers(), []
    asked = Autotune(max_samples=samples, sample_steps=1, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Engine(model, optimizer, GradientAllReduce(), comm, autotune=asked, bucket_size=2**16, channels=4) as engine:
        while engine.tuning:
            cut = [len(bucket.params) for bucket in engine.buckets]
            steps.append((*cut, min(engine.sending.channels, len(cut))))
            model(torch.ones(4, 32)).square().mean().backward()
            engine.step()
        assert engine.study is not None
        return [steps[end - 1] for end in engine.study.ends]


def sizes_tried(comm: CountedComm, first: list[dict[str, int]], size: int) -> list[int]:
    """Different bucket sizes in the order in which they were tried."""
    model, found = layers(), dict[int, None]()
    asked = Autotune(max_samples=len(first), sample_steps=1, warmup_steps=1, first=first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Engine(model, optimizer, GradientAllReduce(), comm, autotune=asked, bucket_size=size, channels=1) as engine:
        while engine.tuning:
            model(torch.ones(4, 32)).square().mean().backward()
            engine.step()
            assert engine.sending.bucket_size is not None
            found[engine.sending.bucket_size] = None
    return list(found)


def among(comm: CountedComm, first: list[dict[str, int]], options: dict[str, int]) -> Study:
    """Tunes over these settings."""
    model, asked = layers(), Autotune(max_samples=len(first), sample_steps=1, warmup_steps=1, first=first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Engine(model, optimizer, GradientAllReduce(), comm, autotune=asked, **options) as engine:
        while engine.tuning:
            model(torch.ones(4, 32)).square().mean().backward()
            engine.step()
        assert engine.study is not None
        return engine.study


def _held() -> int:
    """Bytes of all tensors that somebody holds."""
    storages = [x.untyped_storage() for x in gc.get_objects() if type(x) in (Tensor, nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _rebuilt(comm: CountedComm) -> list[int]:
    """What is held after each of several rebuilds, with other numbers of buckets; without the collector's own turns."""
    model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(4)])
    held = []
    gc.disable()
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1, 0.9), GradientAllReduce(), comm) as engine:
        for size in (40_000, 1_000_000, 40_000, 80_000, 120_000, 160_000, 1_000_000):
            engine.module(torch.randn(2, 100)).sum().backward()
            engine.step()
            engine.plan.change(size, None, {})
            engine.rebuild()
            held.append(_held())
    return held


def test_nothing_is_kept_of_the_buckets_before() -> None:
    """Tuning with a large model ran out of memory: in cycles, and in channels that had nothing to send any more."""
    for held in run("gloo", 2, _rebuilt):
        assert max(held) - min(held) < 40_000, "less than a bucket"


@pytest.mark.parametrize("name", ["max_samples", "sample_steps", "warmup_steps"])
def test_there_is_something_to_try(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
        Autotune(**{name: 0})  # type: ignore[arg-type]


def without_a_forward(comm: CountedComm) -> Study | None:
    """Nobody calls the model itself, as where it is compiled."""
    model, asked = layers(), Autotune(max_samples=3, sample_steps=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Engine(model, optimizer, GradientAllReduce(), comm, autotune=asked) as engine:
        for _ in range(20):
            sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
            engine.step()
        assert not engine.tuning
        return engine.study


def test_steps_are_timed_without_a_forward_of_the_model() -> None:
    first, _ = run("threads", 2, without_a_forward)
    assert len(first.trials) == 3 and all(trial.score > 0 for trial in first.trials)


def without_hierarchy(comm: CountedComm, make: Callable[[], Algorithm]) -> tuple[dict[str, float], Values]:
    """Tuned to send between all ranks, though it was made to send between servers."""
    model = layers()
    asked = Autotune(max_samples=1, sample_steps=1, warmup_steps=1, first=[{"hierarchical": 0}])
    with Engine(model, torch.optim.Adam(model.parameters(), lr=1e-6), make(), comm, autotune=asked) as engine:
        for _ in range(6):
            model(torch.ones(1, 32)).sum().backward()
            engine.step()
        before = engine.sent()
        model(torch.ones(1, 32)).sum().backward()
        engine.step()
        assert engine.study is not None
        return {key: value - before[key] for key, value in engine.sent().items()}, engine.study.best


@pytest.mark.parametrize("make", [ByteGrad, partial(QAdam, warmup_steps=1)], ids=["bytegrad", "qadam"])
def test_hierarchy_of_compressed_exchanges_is_tuned(make: Callable[[], Algorithm]) -> None:
    found = run("threads", 4, without_hierarchy, make, per_server=2)
    assert found[0][1]["hierarchical"] == 0
    for sent, _ in found:
        assert sent["flat"] > 0 and sent["intra"] == sent["inter"] == 0
