"""A cell and a result survive JSON exactly; what does not fit is one line."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bagua_bench.configuration import plain, schema
from bagua_bench.configuration.cell import (
    AlgoPart,
    Cell,
    ClusterPart,
    ComputePart,
    NetworkPart,
    RunPart,
    TransportPart,
    identity,
)
from bagua_bench.results.result import Averaging, Checks, Interface, RankResult, Reality, Result, Span
from tests.catalogue import options, resolved
from tests.unit.test_schema_history import committed, migrate

GROUPS = ("task", "algo", "transport", "cluster", "network", "compute")
NUMBERS = [
    ("run.steps", st.integers(1, 1000).map(str)),
    ("run.timeout", st.integers(1, 90).map("{}s".format)),
    ("run.bucket_size", st.integers(0, 64).map("{}MiB".format)),
    ("run.overlap", st.sampled_from(["true", "false"])),
    ("network.bandwidth", st.sampled_from(["null", "1gbit", "12.5mbit"])),
    ("network.latency", st.integers(0, 99).map("{}ms".format)),
    ("network.flow_rates", st.sampled_from(["[]", "[1gbit,200mbit]"])),
    ("cluster.server.1.bandwidth", st.sampled_from(["null", "3mbit"])),
    ("cluster.slow_ranks.0", st.sampled_from(["2", "1.5"])),
    ("cluster.physics.line", st.sampled_from(["1", "1e9"])),
    ("task.step_seconds", st.sampled_from(["null", "1", "0.25"])),
    ("compute.haste", st.sampled_from(["1", "8", "0.25"])),
    ("compute.shrink", st.sampled_from(["1", "100", "2.5"])),
]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Overrides: a mode, an option of some groups, some values."""
    chosen = [f"mode={draw(st.sampled_from(['measure', 'emulate', 'simulate']))}"]
    for group in draw(st.sets(st.sampled_from(GROUPS))):
        chosen.append(f"{group}={draw(st.sampled_from(options(group)))}")
    for key, values in draw(st.lists(st.sampled_from(NUMBERS), unique_by=lambda pair: pair[0])):
        chosen.append(f"{key}={draw(values)}")
    return chosen


@settings(max_examples=60, deadline=None)
@given(command_lines())
def test_a_composed_cell_survives_json(overrides: list[str]) -> None:
    cell = resolved(*overrides)
    text = json.dumps(cell.to_json())
    again = Cell.from_json(json.loads(text))
    assert again == cell
    assert json.dumps(again.to_json()) == text, "not even 1 and 1.0 are confused"
    assert again.id == cell.id == identity(json.loads(text))


def test_every_committed_record_is_a_cell() -> None:
    for record in map(migrate, committed()):
        cell = Cell.from_json(record["config"])
        assert cell.to_json() == record["config"]
        assert cell.id == record["cell"]


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        (schema.RunKeys, RunPart),
        (schema.TransportKeys, TransportPart),
        (schema.ClusterKeys, ClusterPart),
        (schema.NetworkKeys, NetworkPart),
        (schema.ComputeKeys, ComputePart),
    ],
)
def test_a_part_has_the_keys_that_can_be_typed(schema: Any, part: Any) -> None:
    typed = [f.name for f in fields(schema)]
    named = [] if part is RunPart else ["name"]
    assert [*named, *typed] == [f.name for f in fields(part)]


def test_nothing_of_a_cell_can_be_set() -> None:
    cell = resolved()
    with pytest.raises(FrozenInstanceError):
        cell.run.steps = 3  # type: ignore[misc]
    assert replace(cell, run=replace(cell.run, steps=3)).id != cell.id
    assert replace(cell, run=replace(cell.run, results="/elsewhere")).id == cell.id
    assert replace(cell, algo=replace(cell.algo, about=None)).id == cell.id


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("run", "steps", "many", "run.steps=many: expected an integer"),
        ("run", "steps", True, "run.steps=True: expected an integer"),
        ("run", "overlap", 1, "run.overlap=1: expected true or false"),
        ("run", "device", "tpu", "run.device=tpu: expected one of cpu, cuda"),
        ("run", "speed", 1, "run.speed: no such key; allowed: steps, untimed"),
        ("network", "flow_rates", [1.0, "x"], "network.flow_rates.1=x: expected a number"),
        ("network", "bandwidth", "1gbit", "network.bandwidth=1gbit: expected a number or null"),
        ("cluster", "server", {"1": {"bandwidth": "x"}}, "cluster.server.1.bandwidth=x: expected a number or null"),
        ("task", "step_seconds", "x", "task.step_seconds=x: expected a number or null"),
    ],
)
def test_what_does_not_fit_is_one_line(group: str, key: str, value: object, message: str) -> None:
    config = resolved().to_json()
    config[group][key] = value
    with pytest.raises(ValueError, match=f"^{message}") as error:
        Cell.from_json(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("group", "key"), [("run", "steps"), ("algo", "name"), ("network", "bandwidth")])
def test_what_is_missing_is_named(group: str, key: str) -> None:
    config = resolved().to_json()
    del config[group][key]
    with pytest.raises(ValueError, match=f"^{group}.{key}: is missing$"):
        Cell.from_json(config)


def test_options_belong_to_the_class_and_nothing_else_does() -> None:
    cell = resolved("algo=qadam", "algo.warmup_steps=7", "task=quadratic")
    assert (cell.algo.name, cell.algo.target) == ("qadam", "algorithms.qadam.QAdam")
    assert cell.algo.options["warmup_steps"] == 7 and "about" not in cell.algo.options
    assert cell.to_json()["algo"]["warmup_steps"] == 7, "as it was typed"
    assert (cell.task.batch, cell.task.scale, cell.task.step_seconds) == (1, "tiny", None)
    assert AlgoPart.from_plain(cell.to_json()["algo"]) == cell.algo


FLOATS = st.floats(0, 1e12)
RANKS = st.builds(
    RankResult,
    seconds=st.lists(st.dictionaries(st.sampled_from(["forward", "step"]), FLOATS)).map(tuple),
    losses=st.lists(FLOATS).map(tuple),
    sent=st.dictionaries(st.sampled_from(["flat", "intra"]), FLOATS),
    metrics=st.dictionaries(st.text(), FLOATS),
    peak_memory=st.none() | st.integers(0),
    streams=st.none() | st.dictionaries(st.text(), st.lists(st.dictionaries(st.text(), FLOATS)).map(tuple)),
    skipped_steps=st.none() | st.integers(0),
    interface=st.none() | st.builds(Interface, st.integers(0), st.integers(0)),
    busy=st.none() | st.floats(0, 1),
    spans=st.lists(
        st.builds(Span, st.text(), st.text(), FLOATS, FLOATS, st.none() | FLOATS, st.none() | st.text())
    ).map(tuple),
)
TEXTS = st.lists(st.text()).map(tuple)
RESULTS = st.builds(
    Result,
    ranks=st.lists(RANKS).map(tuple),
    rank_counts=st.none() | st.lists(FLOATS).map(tuple),
    checks=st.builds(Checks, st.booleans(), st.none() | st.text(), st.none() | st.booleans(), FLOATS | st.text()),
    samples_per_step=st.integers(1),
    samples_per_epoch=st.integers(1),
    synthetic=st.booleans(),
    warmup_steps=st.integers(0),
    parameters=st.integers(1),
    emulation=st.none() | st.builds(Reality, TEXTS, TEXTS, st.dictionaries(st.text(), FLOATS), st.text(), st.none()),
    averaging=st.none() | st.builds(Averaging, st.integers(0), st.none() | FLOATS, st.none() | FLOATS),
)


@settings(max_examples=100, deadline=None)
@given(RESULTS)
def test_a_result_survives_json(result: Result) -> None:
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_what_does_not_apply_is_not_written() -> None:
    assert plain.dump(Checks(passed=True, reason=None)) == {"passed": True, "reason": None}
    with pytest.raises(ValueError, match=r"^passed=1: expected true or false$"):
        plain.load(Checks, {"passed": 1, "reason": None})
