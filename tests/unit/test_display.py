"""What is shown while a run goes on and when it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bagua_bench.console import display, outcome
from bagua_bench.results import records
from bagua_bench.worker.progress import Progress, to_file
from tests.catalogue import resolved
from tests.unit.test_records import RESULT, new


def events(path: Path) -> Iterator[dict[str, Any]]:
    """What the rank 0 of a run says: two warm-up steps, then thirty."""
    progress = Progress(to_file(path))
    report = progress.stepper(10, {"untimed": 0, "timed": 30})
    for phase, steps in (("warm-up", 2), ("timed", 30)):
        for step in range(1, steps + 1):
            report(phase, step, 0.5, 2.0)
    progress.say("checking")
    yield from map(json.loads, path.read_text().splitlines())


def test_a_long_run_says_now_and_then_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(100.0, 11.0)  # a step takes 11 s
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(display, "CONSOLE", Console(force_terminal=False))
    with display.watching("vgg16") as watch:
        for event in events(tmp_path / "progress.jsonl"):
            watch(event)
    first, timed, *lines, checking = capsys.readouterr().err.splitlines()
    assert (first, timed, checking) == ("vgg16: warm-up", "vgg16: timed", "vgg16: checking")
    assert len(lines) == 9, "a line every 30 seconds, with the next event: of 319 seconds"
    assert lines[0] == "vgg16: timed, step 4/30, 4.767 min left, loss 0.5, 5 samples/s"
    assert lines[-1] == "vgg16: timed, step 28/30, 22 s left, loss 0.5, 5 samples/s"


def test_on_a_terminal_it_stays_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "terminal").open("w+") as stream:
        monkeypatch.setattr(display, "CONSOLE", Console(file=stream, force_terminal=True, width=120))
        with display.watching("vgg16") as watch:
            for event in list(events(tmp_path / "progress.jsonl"))[:-1]:
                watch(event)
        assert "step 30/30, loss 0.5" in (tmp_path / "terminal").read_text()


def shown(record: records.Record, monkeypatch: pytest.MonkeyPatch) -> str:
    console = Console(record=True, width=200)
    monkeypatch.setattr(outcome, "CONSOLE", console)
    outcome.show(record, Path("records.jsonl"))
    return console.export_text()


def finished(*overrides: str) -> records.Record:
    cell = resolved(*overrides)
    record = deepcopy(records.complete(new(), RESULT)) | {
        "config": cell.to_json(),
        "source": records.SOURCES[cell.mode],
    }
    record["result"]["emulation"] = {"step_seconds_from": "compute=v100"}
    return record


def test_a_scale_model_is_called_so_beside_the_network_asked_for_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["network.bandwidth=40gbit", "network.latency=5ms", "cluster.server.1.bandwidth=10gbit"]
    record = finished("mode=emulate", "compute.shrink=100", *asked)
    pairs = [{"goodput": 3.86e8, "rtt": 0.0101}, {"goodput": 9.65e7, "rtt": 0.0102}]
    record["network"]["measured"] = {"backend": "link", "before": pairs, "after": None, "flags": ["a flag"]}
    text = shown(record, monkeypatch)
    assert "emulated, scale model 1 : 100" in text
    assert "asked: 40 Gbit/s, 5 ms one way; server 1: 10 Gbit/s" in text
    assert "in the scale model: 400 Mbit/s, 5 ms one way; server 1: 100 Mbit/s" in text
    assert "measured: 96.5 Mbit/s ... 386 Mbit/s, round trip 10.1 ms ... 10.2 ms (link)" in text
    assert "a flag" in text and "of the scale model" in text
    hasty = finished("mode=emulate", "compute.haste=8", *asked)
    hasty["network"]["measured"] = record["network"]["measured"]
    quick = shown(hasty, monkeypatch)
    assert "emulated, run 8 times as quick" in quick
    assert "in the scale model: 320 Gbit/s, 0.625 ms one way; server 1: 80 Gbit/s" in quick


def test_a_simulation_says_what_network_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(finished("mode=simulate", "network.bandwidth=400mbit", "network.loss=1%"), monkeypatch)
    assert "asked: 400 Mbit/s, 1 % lost" in text
    assert "scale model" not in text
    assert "asked: no limits" in shown(finished("mode=simulate"), monkeypatch)


def test_few_bytes_are_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(finished(), monkeypatch)
    assert "15 B per step and rank" in text
    assert "asked" not in text, "the network of the machine, as it is"


@pytest.mark.parametrize("status", ["failed", "wrong"])
def test_a_reason_may_hold_what_looks_like_markup(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "rank 1: [/opt/gloo/pair.cc:534] closed"
    record = finished() | {"status": status, "reason": reason}
    if status == "failed":
        record["result"] = None
    assert reason in shown(record, monkeypatch)
    outcome.show_line("[1/2] algo.name=ddp", record)
    assert f"{status}: {reason}" in outcome.CONSOLE.export_text()


def test_cells_are_told_apart_by_what_differs_and_is_not_said_by_a_name() -> None:
    cells = [
        resolved("mode=simulate", f"algo={algo}", f"network.bandwidth={rate}")
        for algo in ("bytegrad", "qadam")
        for rate in ("1gbit", "10gbit")
    ]
    names = display.names(cells)
    assert names[cells[0].id] == "algo.name=bytegrad network.bandwidth=1gbit"
    assert names[cells[3].id] == "algo.name=qadam network.bandwidth=10gbit"
    assert display.names(cells[:1]) == {cells[0].id: "vgg16 bytegrad over gloo, 2 ranks"}


def test_cells_are_told_apart_by_what_only_one_algorithm_has() -> None:
    cells = [resolved("algo=ddp"), *(resolved("algo=bytegrad", f"algo.average={way}") for way in ("true", "false"))]
    assert list(display.names(cells).values()) == [
        "algo.name=ddp",
        "algo.name=bytegrad algo.average=True",
        "algo.name=bytegrad algo.average=False",
    ]
