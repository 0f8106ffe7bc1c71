"""Records as a data frame, side by side, and as files; reading that shares what records have in common."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bagua_bench
from bagua_bench.analysis import export, frame, tensorboard
from bagua_bench.analysis.comparison import compare, pairs, ratio_interval
from bagua_bench.analysis.side import side
from bagua_bench.results import records
from bagua_bench.results.lines import Parser
from bagua_bench.results.provenance import HOME
from bagua_bench.results.schema_history import HISTORY, SCHEMA, migrate
from tests.unit.test_figures import RATES, campaign
from tests.unit.test_records import new

QUICK = HOME / "results" / "quick"
FIXTURES = HOME / "tests" / "fixtures" / "records"


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    for record in found:
        records.append(path / "records.jsonl", record)
    return path


def with_ids(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    found = campaign(rates)
    for record in found:
        record["cell"] = f"{list(rates).index(record['cell']):012x}"
    return found


# -- the frame ----------------------------------------------------------------------------------------------------


def test_columns_are_typed() -> None:
    data = bagua_bench.load(QUICK)
    assert len(data) == 15 == len(data.groupby(["cell", "round"], observed=True))
    assert isinstance(data["began"].dtype, pd.DatetimeTZDtype)
    for name in ("status", "source", "campaign", "cell", "algo.name", "code.commit", "machine.fingerprint"):
        assert isinstance(data[name].dtype, pd.CategoricalDtype), name
    for name in ("throughput", "step_seconds_median", "epoch_seconds", "bytes_per_step", "network.latency"):
        assert data[name].dtype == "float64", name
    assert data["run.bucket_size"].dtype == data["round"].dtype == "int64"
    assert data["algo.bucket_cap_mb"].dtype == "Int64", "DDP's alone"
    assert data["checks.passed"].dtype == "bool"


def test_values_are_those_of_the_records() -> None:
    [*found] = records.read([QUICK / "records.jsonl"])
    for record, row in zip(found, frame.frame(found).to_dict("records"), strict=True):
        result = record["result"]
        assert row["throughput"] == result["throughput"]
        assert row["throughput_low"] == result["throughput_interval"][0]
        assert row["step_seconds_median"] == pd.Series(result["step_seconds"]).median()
        assert row["bytes_per_step"] == sum(sum(rank.values()) for rank in result["bytes_per_step"]) / record["ranks"]
        assert row["algo.name"] == record["config"]["algo"]["name"]
        assert row["run.bucket_size"] == record["config"]["run"]["bucket_size"]
        assert row["code.commit"] == record["code"]["git"]["commit"]
        assert row["began"].isoformat() == record["began"]


def test_a_run_without_a_result_has_no_numbers(tmp_path: Path) -> None:
    done = with_ids({"ddp": [1.0]})
    data = bagua_bench.load(write(tmp_path, [*done, records.fail(new(), "rank 1: killed")]))
    assert list(data["status"]) == ["done", "failed"]
    assert data["throughput"].isna().tolist() == data["checks.passed"].isna().tolist() == [False, True]
    assert data["samples_per_step"].dtype == "Int64" and data["reason"][1] == "rank 1: killed"


def test_ranks_of_a_simulation_count_as_often_as_they_stand_for_some() -> None:
    [record] = campaign({"ddp": [1.0]})
    record["result"]["rank_counts"] = [3, 1]
    [row] = frame.frame([record]).to_dict("records")
    assert row["bytes_per_step"] == (3 * 10 + 20) / 4


@pytest.mark.parametrize("version", sorted(version for version in HISTORY if version < SCHEMA))
def test_every_version_is_read(version: int) -> None:
    path = FIXTURES / f"v{version}.jsonl"
    assert set(bagua_bench.load(path)["schema"]) == {SCHEMA}


def test_a_folder_of_campaigns(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, with_ids({"ddp": [1.0]}))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "records.jsonl").write_text('{"of": "another kind"}\n')
    assert len(bagua_bench.load(tmp_path)) == 2
    assert len(bagua_bench.load(tmp_path / "a")) == 1


def test_no_records_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.txt").write_text("no JSON\n5\n[]\n")
    for name in ("empty", "other.txt", "nowhere"):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}: there are no records[^\n]*$"):
            bagua_bench.load(tmp_path / name)


def test_importing_the_package_imports_neither_pandas_nor_torch() -> None:
    code = "import sys, bagua_bench, bagua_bench.analysis.frame; print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_pages_snippet_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (HOME / "docs" / "results.md").read_text()
    [code] = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(HOME)
    exec(code, {})
    assert "bytegrad" in capsys.readouterr().out


def test_the_page_has_every_column() -> None:
    page = (HOME / "docs" / "results.md").read_text()
    groups = ("task.", "algo.", "transport.", "cluster.", "network.", "run.", "machine.", "phase_seconds.", "metrics.")
    names = [name for name in bagua_bench.load(QUICK) if not name.startswith((*groups, "compute.", "bytes_per_step."))]
    assert [name for name in names if f"`{name}`" not in page] == []


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*sorted(FIXTURES.glob("*.jsonl")), QUICK / "records.jsonl"], ids=str)
def test_records_are_what_json_and_migration_make_of_them(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert records.read([path, path]) == [migrate(json.loads(line)) for line in lines * 2]


LINES = (
    '{"schema": 9, "config": {"a": 1}, "ranks": 1}',
    '{"schema": 9, "config": {"a": 1}, "ranks": 2}',
    '{"schema": 9, "config": {"a": 1}}',
    '{"schema": 9, "config": {"a": 1, "ranks": 1}, "ranks": {"config": {"a": 1}}}',
    '{"schema": 9, "config": {"a": ", \\"ranks\\": "}, "ranks": 1}',
    '{"ranks": 1, "config": {"a": 1}, "machine": {"a": 1}, "schema": 9}',
    '{"config":{"a":1},"ranks":1}',
    '{ "config" : {"a": 1} , "ranks" : 1 }',
    '{"config": null, "ranks": [1, {"config": {}}]}',
    '{"a\\"b": 1, "config": {"a": 1}, "ranks": 1}',
    "{}",
)


def test_lines_are_parsed_as_json_is_whatever_came_before() -> None:
    parser = Parser()
    for first in LINES:
        for second in LINES:
            for line in (first, second):
                assert parser.parse(line.encode()) == json.loads(line), (first, second)


@pytest.mark.parametrize("line", LINES[:6])
def test_no_beginning_of_a_line_is_a_record(line: str) -> None:
    parser = Parser()
    parser.parse(line.encode())
    assert [text for text in (line[:k] for k in range(len(line))) if parser.parse(text.encode()) is not None] == []
    assert parser.parse(f"{line} 1".encode()) is None
    assert parser.parse(b"5") is parser.parse(b"\xff\xfe") is None


def test_records_share_what_they_have_in_common() -> None:
    found = records.read([FIXTURES / "v5.jsonl"] * 2)
    half = len(found) // 2
    assert all(a["config"] is b["config"] and a["code"] is b["code"] for a, b in zip(found, found[half:], strict=False))
    cells = records.cells_of(found)
    assert cells == [records.cell_of(record) for record in found] and cells[0] is cells[half]


# -- side by side -------------------------------------------------------------------------------------------------


def verdicts(folder: Path, a: str, b: str) -> list[Any]:
    return [compare(*pair) for pair in pairs(side(f"{folder}{a}"), side(f"{folder}{b}"))[0]]


def test_what_differs_and_by_how_much(tmp_path: Path) -> None:
    folder = write(tmp_path, with_ids(RATES))
    [found] = verdicts(folder, ":algo=ddp", ":algo=bytegrad")
    assert found.differences == (("algo.name", "ddp", "bytegrad"),)
    assert found.ratio == pytest.approx(10.4 / 20.4, rel=0.01)
    assert found.interval[0] < found.ratio < found.interval[1]
    assert (found.verdict, found.obstacles) == ("B is faster", ())
    assert verdicts(folder, ":algo=bytegrad", ":algo=ddp")[0].verdict == "A is faster"
    [alike] = verdicts(folder, ":algo=ddp", ":algo=same")
    assert (alike.verdict, alike.ratio) == ("no significant difference", 1)
    [few] = verdicts(
        write(tmp_path / "few", with_ids({"ddp": [1.0], "bytegrad": [9.0]})), ":000000000000", ":algo=bytegrad"
    )
    assert few.verdict.startswith("no claim: 1 and 1 rounds") and few.interval == (few.ratio, few.ratio)


def test_the_noise_is_that_of_the_figure(tmp_path: Path) -> None:
    """A third cell at the same place that differs from itself more than the two differ."""
    both = side(str(write(tmp_path, with_ids({**RATES, "wild": [5.0, 50, 5, 50, 5]}))))
    a, b = both.cells["000000000000"], both.cells["000000000001"]
    assert compare(a, b).verdict == "B is faster"
    assert compare(a, b, both.around).verdict == "no significant difference"
    for record in both.around[3]:
        record["config"]["network"] = {**record["config"]["network"], "latency": 9.0}
    assert compare(a, b, both.around).verdict == "B is faster", "another network says nothing of this one"


def machine(record: dict[str, Any]) -> None:
    record["machine"] = {**record["machine"], "fingerprint": "another"}


def source(record: dict[str, Any]) -> None:
    record["source"] = "emulated"


def batch(record: dict[str, Any]) -> None:
    record["result"]["samples_per_step"] *= 2


def code(record: dict[str, Any]) -> None:
    record["code"] = {**record["code"], "sources": "another"}


@pytest.mark.parametrize(
    ("change", "said"),
    [(machine, "different machines"), (source, "source: "), (batch, "samples per step: 10 and 20"), (code, "the code")],
)
def test_what_is_not_comparable(change: Any, said: str) -> None:
    found = json.loads(json.dumps(campaign(RATES)))
    for record in found[5:]:
        change(record)
    of = compare(found[:5], found[5:10])
    assert [reason for reason in of.obstacles if said in reason] and of.verdict.startswith("no claim: they are not")
    mixed = compare([*found[:4], found[9]], found[5:10]) if change is machine else of
    assert change is not machine or mixed.obstacles[0].startswith("A's own records differ in ")


def test_two_versions_of_the_code(tmp_path: Path) -> None:
    found = json.loads(json.dumps(with_ids({"ddp": RATES["ddp"], "bytegrad": RATES["bytegrad"]})))
    other = json.loads(json.dumps(found))
    for commit, group in (("aaaa1", found), ("bbbb2", other)):
        for record in group:
            record["code"] = {**record["code"], "sources": commit, "git": {"commit": commit, "diff": None}}
    for record in other:
        record["result"]["throughput"] *= 2
    folder = write(tmp_path, [*found, *other])
    both = verdicts(folder, "@aaaa", "@bbbb2")
    assert [(one.verdict, one.ratio, one.obstacles) for one in both] == [("B is faster", pytest.approx(0.5), ())] * 2
    assert {"code.commit", "code.sources"} == {key for one in both for key, _, _ in one.differences}


def test_cells_are_matched_by_what_was_not_chosen(tmp_path: Path) -> None:
    found = with_ids({"ddp": [1.0], "bytegrad": [2.0]})
    more = json.loads(json.dumps(found))
    for record in more:
        record["config"]["network"]["latency"], record["cell"] = 0.005, f"a{record['cell'][1:]}"
    lone = {**json.loads(json.dumps(more[0])), "cell": "b00000000000"}
    lone["config"]["network"]["latency"] = 0.1
    folder = write(tmp_path, [*found, *more, lone])
    matched, left = pairs(side(f"{folder}:algo=ddp"), side(f"{folder}:algo=bytegrad"))
    assert [(a[0]["cell"], b[0]["cell"]) for a, b in matched] == [
        ("000000000000", "000000000001"),
        ("a00000000000", "a00000000001"),
    ]
    assert left == 1
    assert len(side(f"{folder}:network.latency=5e-3").cells) == 2
    assert len(side(f"{folder}:run.autotune=null").cells) == 5


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (":algo=none", "no record has algo=none; there are: ddp, bytegrad, same"),
        (":speed=9", "no record has the key speed"),
        (":fedc", "no cell fedc; there are: 000000000000, "),
        ("@fedc", "no record of commit fedc; there are: "),
        ("/nowhere", "there are no records"),
    ],
)
def test_a_side_that_is_not_there_is_one_line(tmp_path: Path, which: str, said: str) -> None:
    folder = write(tmp_path, with_ids(RATES))
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(said)}[^\n]*$"):
        side(f"{folder}{which}")


def test_the_interval_of_a_ratio_covers_it() -> None:
    low, high = ratio_interval([2.0, 2.1, 1.9, 2.0, 2.05], [1.0, 1.1, 0.9, 1.0, 1.05])
    assert 1.7 < low < 2.0 < high < 2.3
    assert ratio_interval([2.0, 2.0], [1.0] * 5) == (2.0, 2.0)


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"), [("runs.xls", "allowed: .csv, .parquet"), ("no/runs.csv", "there is no folder")]
)
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str, said: str) -> None:
    assert said in str(export.problem(str(tmp_path / name)))


def test_parquet_without_its_library_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert "pip install 'bagua-bench[parquet]'" in str(export.problem(str(tmp_path / "runs.parquet")))
    assert "pip install tensorboard" in str(export.problem("tensorboard:runs"))
    assert export.problem(str(tmp_path / "runs.csv")) is None


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_keeps_the_types(tmp_path: Path) -> None:
    data = bagua_bench.load(QUICK)
    data.to_parquet(tmp_path / "runs.parquet", engine="pyarrow", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), data)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_curves_settings_and_results(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = records.read([QUICK / "records.jsonl"])
    done = [record for record in found if record["result"] is not None]
    assert tensorboard.write(found, tmp_path) == len(done)
    for record in done[:3]:
        at = datetime.fromisoformat(record["began"])
        name = f"{record['config']['algo']['name']}-{record['cell']}-{record['round']}-{at:%Y%m%dT%H%M%S}"
        events = EventAccumulator(str(tmp_path / "quick" / name)).Reload()
        steps = [event.value for event in events.Scalars("step_seconds")]
        assert steps == pytest.approx(record["result"]["step_seconds"])
        assert [event.value for event in events.Scalars("loss")] == pytest.approx(record["result"]["losses"])
        assert events.Scalars("throughput")[0].value == pytest.approx(record["result"]["throughput"])
        assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_runs_of_one_cell_stay_apart_and_untimed_steps_come_before_the_timed_ones(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = next(one for one in records.read([QUICK / "records.jsonl"]) if one["result"] is not None)
    record["config"]["run"]["untimed"] = 2
    record["result"]["losses"] = [9.0, 8.0, *record["result"]["losses"]]
    later = {**record, "began": "2027-01-02T03:04:05+00:00"}
    assert tensorboard.write([record, later], tmp_path) == 2
    folders = sorted((tmp_path / "quick").iterdir())
    assert len(folders) == 2
    events = EventAccumulator(str(folders[1])).Reload()
    assert events.Scalars("step_seconds")[0].step == 3 and events.Scalars("loss")[0].step == 1
