"""Records of every older version are read as present ones."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.results import records
from bagua_bench.results.schema_history import HISTORY, SCHEMA, migrate
from tests.catalogue import HOME, constructor

FIXTURES = HOME / "tests" / "fixtures" / "records"
OLDER = range(1, SCHEMA)
NO_WAN = {"bandwidth": None, "latency": 0.0, "jitter": 0.0, "loss": 0.0}


def old(version: int) -> list[dict[str, Any]]:
    """Records as that version wrote them."""
    found = [json.loads(line) for line in (FIXTURES / f"v{version}.jsonl").read_text().splitlines()]
    assert found and {record["schema"] for record in found} == {version}
    return found


def committed() -> list[dict[str, Any]]:
    files = sorted(HOME.glob("results/*/records.jsonl"))
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [record for record in found if "config" in record]


def test_versions_have_no_gap_and_are_documented() -> None:
    assert list(HISTORY) == list(range(1, SCHEMA + 1))
    page = (HOME / "results" / "README.md").read_text()
    assert all(f"| {version} | {change} |" in page for version, change in HISTORY.items())
    assert f"## Schema {SCHEMA} of a record" in page


@pytest.mark.parametrize("version", OLDER)
def test_every_older_record_becomes_a_present_one(version: int) -> None:
    for record in old(version):
        before = deepcopy(record)
        new = migrate(record)
        assert record == before, "the old record was changed"
        assert new["schema"] == SCHEMA
        assert migrate(new) == new
        changes = ("schema", "config", "cell", "status", "reason")
        assert {key: new[key] for key in new if key not in changes} == {
            key: record[key] for key in record if key not in changes
        }
        for group in set(record["config"]) - {"algo", "task"}:
            assert new["config"][group] == filled(group, record["config"][group])


def test_from_1_what_averaged_nothing_is_wrong() -> None:
    silent = {"flat": 0.0, "intra": 0.0, "inter": 0.0}
    for record in old(1):
        if record["status"] == "done" and record["ranks"] > 1:
            result = {**record["result"], "bytes_per_step": [silent] * record["ranks"]}
            new = migrate({**record, "result": result})
            idle = record["config"]["algo"]["name"] == "async"
            assert (new["status"], new["reason"] is None) == (("wrong", False) if idle else ("done", True))
            assert migrate(record)["status"] == "done"


def filled(group: str, values: Any) -> Any:
    """What was not written before it could be chosen."""
    added = {
        "run": {"precision": "fp32", "channels": 1},
        "compute": {"haste": 1.0},
        "network": {"software_delay": False, "sites": 1, "wan": NO_WAN},
    }
    if group == "run" and values.get("elastic"):
        values = {**values, "elastic": {"regroup": False, **values["elastic"]}}
    return values if values is None else {**added[group], **values} if group in added else values


@pytest.mark.parametrize("version", OLDER)
def test_reading_migrates(version: int) -> None:
    assert {record["schema"] for record in records.read([FIXTURES / f"v{version}.jsonl"])} == {SCHEMA}


def test_from_1_declarations_are_filled_in() -> None:
    for record in map(migrate, old(1)):
        assert (
            facts.algorithm(Cell.from_json(record["config"]).algo).title
            == facts.option(record["config"]["algo"]["name"]).title
        )
        assert facts.task(Cell.from_json(record["config"]).task).title
    [qadam, *_] = [record for record in old(1) if record["config"]["algo"].get("warmup_steps", 100) != 100]
    declared = facts.algorithm(Cell.from_json(migrate(qadam)["config"]).algo)
    assert declared.warm_up == qadam["config"]["algo"]["warmup_steps"], "as the record's options have it"


def test_from_1_a_preset_is_written_out() -> None:
    presets = [record["config"]["algo"].get("preset") for record in old(1)]
    assert {"default", "released", None} == set(presets)
    for record, preset in zip(old(1), presets, strict=True):
        before, after = record["config"]["algo"], migrate(record)["config"]["algo"]
        changed = {key: after[key] for key in after if key != "about" and after[key] != before[key]}
        assert "preset" not in after and set(before) - set(after) <= {"preset"}
        assert changed == (RELEASED[before["name"]] if preset == "released" else {})


RELEASED = {
    "qadam": {
        "codec": "minmax_uint8",
        "error_feedback": False,
        "compress_single_rank": True,
        "bias_correction": "drift",
        "freeze_after": "warmup_minus_one",
        "weight_decay_stage": "warmup",
    },
    "bytegrad": {"compress_single_rank": True},
    "low_precision_decentralized": {"compress_single_rank": True},
    "decentralized": {"peers": "all"},
}
"""What the published code does differently (docs/algorithms.md, QAdam)."""


@pytest.mark.parametrize("name", RELEASED)
def test_from_1_a_preset_meant_what_the_released_configuration_says(name: str) -> None:
    record = next(r for r in old(1) if r["config"]["algo"]["name"] == name and "preset" in r["config"]["algo"])
    record["config"]["algo"]["preset"] = "released"
    algo = migrate(record)["config"]["algo"]
    assert {key: algo[key] for key in RELEASED[name]} == RELEASED[name]
    plain, released = constructor(name), constructor(f"{name}_released")
    assert {key: value for key, value in released.items() if value != plain[key]} == RELEASED[name]


def test_a_cell_keeps_its_id_but_where_a_key_is_gone() -> None:
    found = [(record, migrate(record)) for record in committed()]
    assert len(found) > 700
    for before, after in found:
        assert after["cell"] == Cell.from_json(after["config"]).id
        meant = "preset" in before["config"]["algo"] or after["config"]["network"]["software_delay"]
        assert (after["cell"] == before["cell"]) == (not meant or before["schema"] >= 7)


def test_from_6_simulated_latency_was_added_by_software() -> None:
    [record, *_] = [record for record in old(2) if record["source"] == "simulated"]
    record["config"]["network"]["latency"] = 2e-3
    new = migrate(record)
    assert new["config"]["network"]["software_delay"] is True
    assert new["cell"] == Cell.from_json(new["config"]).id
    emulated = {**record, "config": {**record["config"], "mode": "emulate"}}
    assert migrate(emulated)["config"]["network"]["software_delay"] is False
    del record["config"]["cluster"]["physics"]["shaped"]  # nothing that would be slow
    assert migrate(record)["config"]["network"]["software_delay"] is False


def test_from_8_nothing_is_said_of_pairs_and_of_going_on_without_a_restart() -> None:
    elastic, paired, alone = old(8)
    assert paired["config"]["algo"]["about"]["pairs"] is True and "unpaired" in paired["config"]["algo"]["about"]
    for record in (elastic, paired, alone):
        new = migrate(record)
        assert not {"pairs", "unpaired"} & {*new["config"]["algo"]["about"]}
        assert not facts.algorithm(Cell.from_json(new["config"]).algo).regroups
        assert new["cell"] == record["cell"] == Cell.from_json(new["config"]).id
    assert migrate(elastic)["config"]["run"]["elastic"]["regroup"] is False
    assert "elastic" not in migrate(paired)["config"]["run"]


@pytest.mark.parametrize("version", [None, 0, SCHEMA + 1])
def test_an_unknown_version_is_one_line(version: int | None, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"schema": version}) + "\n")
    versions = ", ".join(map(str, HISTORY))
    with pytest.raises(ValueError, match=rf"records\.jsonl:1: schema {version}, this version reads {versions}$"):
        records.read([path])
