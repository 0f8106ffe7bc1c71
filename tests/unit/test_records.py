"""Records, their summary, their file, and which may be drawn together."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path

import pytest

from bagua_bench.results import records
from bagua_bench.results.result import Checks, RankResult, Result
from bagua_bench.results.summary import summarise
from tests.catalogue import resolved

CELL = resolved("task=quadratic", "algo=bytegrad", "transport=gloo", "run.steps=2")


def rank(seconds: list[float], losses: tuple[float, ...], sent: float) -> RankResult:
    phases = {"forward": 1.0, "backward": 2.0, "communication": 0.5, "optimizer": 0.25}
    return RankResult(
        seconds=tuple({**phases, "step": s} for s in seconds),
        losses=losses,
        sent={"flat": sent, "intra": 0.0, "inter": 0.0},
        peak_memory=100,
        metrics={"top1": losses[0]},
    )


RESULT = Result(
    ranks=(rank([1.0, 3.0], (5.0, 4.0), 20.0), rank([2.0, 2.0], (7.0, 2.0), 40.0)),
    checks=Checks(passed=True, reason=None),
    samples_per_step=10,
    samples_per_epoch=100,
    synthetic=True,
    warmup_steps=3,
    parameters=32,
)


def new(round_: int = 0) -> records.Record:
    return records.make_record(CELL, "test", round_, datetime.now(timezone.utc))


def test_summary() -> None:
    summary = summarise(RESULT)
    assert summary["step_seconds"] == [2.0, 2.0], "until the last rank has ended a step"
    assert summary["throughput"] == 20 / 4, "all samples over all time"
    assert summary["epoch_seconds"] == 20
    assert summary["losses"] == [6.0, 3.0]
    assert summary["bytes_per_step"] == [{"flat": 10, "intra": 0, "inter": 0}, {"flat": 20, "intra": 0, "inter": 0}]
    assert summary["metrics"] == {"top1": 6.0}
    assert summary["phase_seconds"]["backward"] == 2.0


def test_ranks_that_wait_in_turn_wait_once() -> None:
    """Two ranks meet a slow one in turn: each waits for it in every other step, for what it did not wait before."""
    slow, first, second = [2.0, 2.0, 2.0, 2.0], [2.0, 0.5, 3.5, 0.5], [0.5, 3.5, 0.5, 3.5]
    ranks = tuple(rank(seconds, (5.0, 4.0), 20.0) for seconds in (slow, first, second))
    summary = summarise(replace(RESULT, ranks=ranks))
    assert summary["step_seconds"] == [2.0, 2.0, 2.0, 2.0], "not 3.5 from the second one on"
    assert summary["throughput"] == 40 / 8


def test_statuses() -> None:
    assert new()["status"] == "failed"
    assert records.complete(new(), RESULT)["status"] == "done"
    bad = replace(RESULT, checks=Checks(passed=False, reason="replicas differ"))
    wrong = records.complete(new(), bad)
    assert (wrong["status"], wrong["reason"]) == ("wrong", "replicas differ")
    failed = records.fail(new(), "rank 1: killed")
    assert (failed["status"], failed["reason"], failed["result"]) == ("failed", "rank 1: killed", None)


def test_a_record_says_what_it_was_measured_on() -> None:
    record = new()
    assert record["schema"] == records.SCHEMA
    assert record["code"]["sources"] and record["code"]["algo"] and record["code"]["task"]
    assert record["machine"]["fingerprint"] and record["machine"]["packages"]["torch"]
    assert record["network"] == {"asked": CELL.to_json()["network"], "measured": None}
    json.dumps(record)


def test_append_and_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "records.jsonl"
    for k in range(3):
        records.append(path, new(k))
    assert [record["round"] for record in records.read([path])] == [0, 1, 2]


def test_a_torn_line_is_passed_over_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records.append(path, new(0))
    with path.open("a") as stream:
        stream.write('{"schema": 1, "sta')  # a writer was killed here
    records.append(path, new(1))
    assert [record["round"] for record in records.read([path])] == [0, 1]


def _append_many(path: str, first: int) -> None:
    for k in range(20):
        records.append(Path(path), {"schema": records.SCHEMA, "round": first + k, "filler": "x" * 20_000})


def test_two_writers_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writers = [get_context("spawn").Process(target=_append_many, args=(str(path), 20 * i)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(record["round"] for record in records.read([path])) == list(range(40))


def test_unknown_schema_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"schema": 99}\n')
    with pytest.raises(ValueError, match="schema 99"):
        records.read([path])


def test_comparable() -> None:
    other = json.loads(json.dumps(new()))
    other["config"]["algo"]["name"] = "ddp"
    records.comparable([new(), other], ["algo"])
    with pytest.raises(ValueError, match=r"algo\.name"):
        records.comparable([new(), other], [])
    other["config"]["task"]["batch"] = 2
    with pytest.raises(ValueError, match=r"task\.batch"):
        records.comparable([new(), other], ["algo"])
    records.comparable([new(), other], ["algo", "task.batch"])
    changed = {**new(), "code": {**new()["code"], "algo": "other"}}
    with pytest.raises(ValueError, match=r"the code of algorithms\.bytegrad\.ByteGrad"):
        records.comparable([new(), changed], ["algo"])
    for key, value in (("source", "published"), ("machine", {**new()["machine"], "fingerprint": "x"})):
        with pytest.raises(ValueError, match=key):
            records.comparable([new(), {**new(), key: value}], [])


def test_an_epoch_of_unknown_length_takes_an_unknown_time() -> None:
    assert summarise(RESULT)["epoch_seconds"] > 0
    assert summarise(replace(RESULT, samples_per_epoch=0))["epoch_seconds"] is None
