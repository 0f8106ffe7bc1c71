"""Tasks on sequences of different lengths: their work, their padding, what ranks get, and the time that it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.configuration.identity import identity
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.emulate import pace
from bagua_bench.emulate.emulation import Emulation
from bagua_bench.machine import loads
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.run import simulate
from tasks.sequences import SequenceTask, Spread
from tests.catalogue import resolved
from tests.unit.test_emulate import Clock

NAMES = ("bert_large", "transformer")


def task(name: str, *overrides: str) -> SequenceTask:
    part = resolved(f"task={name}", "task.scale=tiny", *overrides).task
    made = build(part.target, part.options)
    assert isinstance(made, SequenceTask)
    return made


def varied(name: str, sampler: str, *more: str) -> SequenceTask:
    longer = {"bert_large": "task.length=48", "transformer": "task.tokens=6"}[name]
    return task(name, f"task.sampler={sampler}", "task.samples=600", "task.batch=4", longer, *more)


@pytest.mark.parametrize("length", [None, 9, 20, 47])
@pytest.mark.parametrize("name", NAMES)
def test_multiply_adds_are_what_torch_counts(name: str, length: int | None) -> None:
    made = varied(name, "random")
    batch = made.typical() if length is None else made.padded([made.sample(length, torch.Generator())])
    with torch.device("meta"):
        model = made.model()
    flops = FlopCounterMode(display=False)
    with flops:
        made.loss(model, tuple(part.to("meta") for part in batch[: -1 if length else None]))
    counted = flops.get_total_flops() / 2 / len(batch[0])
    assert made.multiply_adds(length) == pytest.approx(counted, rel=1e-6)


@pytest.mark.parametrize("sampler", ["random", "balanced"])
@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_has_every_sample_and_the_work_is_that_of_its_batches(name: str, sampler: str) -> None:
    made = varied(name, sampler)
    steps = 600 // (3 * 4)
    batches = [list(islice(made.batches(rank, 3, 5), steps)) for rank in range(3)]
    rows = [part.numpy().tobytes() for own in batches for batch in own for part in (unpadded(made, batch))]
    assert len(set(rows)) == 600, "as many different samples as there are"
    work = made.work(3, 5)
    assert work is not None
    for step, expected in enumerate(islice(work, steps)):
        for rank, load in enumerate(expected):
            longest = max(len(row) for row in unpadded(made, batches[rank][step]))
            assert load == pytest.approx(made.multiply_adds(_length(name, longest)) / made.multiply_adds(None))


def unpadded(made: SequenceTask, batch: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The samples of a batch without their padding, which the mask tells."""
    return [row[: int(own.sum())] for row, own in zip(batch[0], batch[-1], strict=True)]


def _length(name: str, rows: int) -> int:
    """The length of which a sample has so many rows."""
    if name == "bert_large":
        return rows
    return next(tokens for tokens in range(1, 100) if (1920 * tokens - 512) // 160 + 1 == rows)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_loss(name: str) -> None:
    """A sample alone has the loss that it has beside a longer one."""
    torch.manual_seed(0)
    made = varied(name, "random")
    model = made.model().eval()
    short, long = (made.sample(length, torch.Generator().manual_seed(1)) for length in (10, 30))
    with torch.no_grad():
        alone = made.loss(model, made.padded([short])), made.loss(model, made.padded([long]))
        both = made.loss(model, made.padded([short, long]))
    counts = [len(one[1]) for one in (short, long)] if name == "transformer" else [1, 1]
    expected = sum(float(loss) * count for loss, count in zip(alone, counts, strict=True)) / sum(counts)
    assert float(both) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_sampler_batches_are_alike(name: str) -> None:
    made = task(name)
    assert made.work(2, 0) is None
    assert [part.shape for part in made.typical()] == [part.shape for part in next(made.batches(1, 2, 0))]


def test_lengths_have_the_mean_and_the_tail_that_were_published() -> None:
    asked = ("task.scale=paper", "task.sampler=random")
    questions, speech = (resolved(f"task={name}", *asked).task for name in NAMES)
    tokens = build(speech.target, speech.options)._lengths.float()
    assert len(tokens) == 1_009_223
    assert 0.12 * float(tokens.mean()) == pytest.approx(1000 * 3600 / 1_009_223, rel=0.02), "1000 hours"
    lengths = build(questions.target, questions.options)._lengths
    assert len(lengths) == 88_641 and int(lengths.max()) == 384
    assert float((lengths == 384).float().mean()) == pytest.approx(88_641 / 87_599 - 1, abs=2e-3)
    assert Spread(10, 0.0, 1, 5).lengths(3, 0).tolist() == [5, 5, 5]


@pytest.mark.parametrize("batching", ["mixed", "similar"])
@pytest.mark.parametrize("name", NAMES)
def test_balancing_evens_out_the_work_of_a_step(name: str, batching: str) -> None:
    def imbalance(sampler: str) -> float:
        made = varied(name, sampler, "task.samples=4000", f"task.batching={batching}")
        found = loads.imbalance(loads.of_steps(made, 4, 0, range(200), 1))
        assert found is not None
        return found

    random, balanced = imbalance("random"), imbalance("balanced")
    assert 1 <= balanced < 1 + 0.2 * (random - 1)
    assert random > 1.1 or batching == "similar"


def test_batches_of_similar_length_have_less_padding() -> None:
    def work(batching: str) -> float:
        made = varied("transformer", "random", "task.samples=4000", f"task.batching={batching}")
        return sum(sum(row) for row in islice(made.work(4, 0) or (), 200))

    assert work("similar") < 0.9 * work("mixed")


def test_loads_of_steps_are_means_over_accumulated_batches() -> None:
    class Counting:
        def work(self, size: int, seed: int) -> Any:
            return iter([(float(k), 1.0) for k in range(100)])

    found = loads.of_steps(Counting(), 2, 0, range(1, 3), accumulate=2)
    assert found == [(2.5, 1.0), (4.5, 1.0)]
    assert loads.imbalance(found) == pytest.approx((2.5 / 1.75 + 4.5 / 2.75) / 2)
    assert loads.imbalance(None) is None and loads.of_steps(None, 2, 0, range(3), 1) is None


ASKED = ("task=transformer", "task.sampler=random", "task.samples=4000", "cluster=4x1", "algo=ddp", "run.steps=5")


def expected_loads(cell: Cell, steps: int) -> list[tuple[float, ...]]:
    made, untimed = build(cell.task.target, cell.task.options), cell.run.untimed
    return list(islice(made.work(cell.cluster.ranks, cell.run.seed), untimed, untimed + steps))


def test_emulated_layers_sleep_in_proportion_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = resolved("mode=emulate", "compute.shrink=1000", *ASKED, "run.steps=3")
    clock = Clock(0.0)
    monkeypatch.setattr(pace, "time", clock)
    emulation = Emulation(cell, 2)
    compute = compute_of(cell, layers_of(cell.task, cell.shrink))
    model = emulation.task.model()
    for batch, ranks in zip(emulation.task.batches(2, 4, cell.run.seed), expected_loads(cell, 3), strict=False):
        began = clock.now
        loss = emulation.task.loss(model, batch)
        assert clock.now - began == pytest.approx(compute.forward * ranks[2])
        loss.backward()
        assert clock.now - began == pytest.approx((compute.forward + compute.backward) * ranks[2])
    assert any("own batches" in line for line in emulation.description().emulated)


@pytest.mark.parametrize("algo", ["ddp", "decentralized", "async"])
def test_simulated_steps_take_time_in_proportion_to_the_batch(algo: str) -> None:
    """Without a network in the way: a synchronous step is its heaviest rank's, an asynchronous one everybody's own."""
    cell = resolved("mode=simulate", *ASKED, f"algo={algo}", "run.untimed=2", "network.bandwidth=100gbit")
    compute = compute_of(cell, layers_of(cell.task))
    result, passes = simulate(cell), compute.forward + compute.backward
    expected = expected_loads(cell, len(result.ranks[0].seconds))
    for step, ranks in enumerate(expected):
        spent = [entry.seconds[step] for entry in result.ranks]
        for rank, load in enumerate(ranks):
            own = spent[rank]["forward"] + spent[rank]["backward"]
            assert own == pytest.approx(passes * load, rel=0.05)
        if algo == "ddp":
            assert max(one["step"] for one in spent) >= passes * max(ranks) + compute.optimizer
    assert result.imbalance == pytest.approx(loads.imbalance(expected))
    assert len(result.ranks) == 4 and result.rank_counts == (1.0, 1.0, 1.0, 1.0)


def test_a_slow_rank_and_its_load_multiply() -> None:
    cell = resolved("mode=simulate", *ASKED, "+cluster.slow_ranks.1=3")
    plain = replace(cell, cluster=replace(cell.cluster, slow_ranks={}))
    slow, usual = (simulate(one).ranks for one in (cell, plain))
    assert slow[1].seconds[0]["forward"] == pytest.approx(3 * usual[1].seconds[0]["forward"], rel=0.02)
    assert slow[0].seconds[0]["forward"] == pytest.approx(usual[0].seconds[0]["forward"], rel=0.02)


def test_an_epoch_of_generated_data_is_as_long_as_asked() -> None:
    assert simulate(resolved("mode=simulate", *ASKED)).samples_per_epoch == 4000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.batching=similar"], "task.batching=similar: without a sampler samples are all alike"),
        (["task.samples=100"], "task.samples=100: without a sampler samples are all alike"),
        (["task.sampler=random", "task.samples=7", "task.batch=4"], r"task.samples=7: 2 ranks x task.batch=4 need 8"),
        (["task.sampler=sorted"], "task.sampler=sorted: expected one of random, balanced, null"),
        (["task.sampler=random", "task.samples=many"], "task.samples=many: expected an integer or null"),
    ],
)
def test_keys_that_do_not_fit(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(resolved("task=transformer", "task.scale=tiny", *overrides))


def test_too_few_samples_are_an_error_where_there_was_no_configuration() -> None:
    with pytest.raises(ValueError, match=r"task\.samples=600: 200 ranks x task\.batch=4 need at least 800"):
        next(varied("transformer", "random").batches(0, 200, 0))


def test_cells_keep_the_ids_that_they_had_before_there_were_samplers() -> None:
    config = resolved("task=transformer").to_json()
    later = ("sampler", "batching", "samples")
    before = {**config, "task": {key: value for key, value in config["task"].items() if key not in later}}
    ids = [resolved("task=transformer", f"task.sampler={sampler}").id for sampler in ("null", "random", "balanced")]
    assert identity(before) == ids[0] and len(set(ids)) == 3


@pytest.mark.parametrize("name", NAMES)
def test_sequences_of_different_lengths_can_be_learned(name: str) -> None:
    torch.manual_seed(0)
    made = varied(name, "balanced", "task.batching=similar", "task.samples=4000", "task.batch=16")
    model = made.model()
    optimizer = made.optimizer(model)
    metric, better = ("f1", 1) if name == "bert_large" else ("token_error_rate", -1)
    before = made.evaluate(model)[metric]
    for batch in islice(made.batches(0, 1, 0), 150):
        optimizer.zero_grad()
        made.loss(model, batch).backward()
        optimizer.step()
    assert better * (made.evaluate(model)[metric] - before) > 0.1
