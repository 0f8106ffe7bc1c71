"""Samples of different lengths in whole runs, and `bagua-bench loading`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bagua_bench.configuration.components import build
from tests.catalogue import HOME, resolved
from tests.integration.cli import bench, python, recorded

VARIED = ["task=transformer", "task.scale=tiny", "task.samples=400", "task.batch=4", "run.warmup=1", "run.steps=4"]


def expected(*overrides: str, untimed: int = 0, accumulate: int = 1) -> float:
    """The imbalance of the four timed steps on two ranks, from the task itself."""
    part = resolved(*VARIED, *overrides).task
    rows = islice(build(part.target, part.options).work(2, 0), accumulate * untimed, accumulate * (untimed + 4))
    steps = [[sum(loads) for loads in zip(*step, strict=True)] for step in zip(*[rows] * accumulate, strict=True)]
    return fmean(max(step) / fmean(step) for step in steps)


@pytest.mark.parametrize("sampler", ["random", "balanced"])
def test_a_measured_run_trains_on_them_and_says_how_even_the_work_was(tmp_path: Path, sampler: str) -> None:
    done = bench(tmp_path, *VARIED, "algo=ddp", f"task.sampler={sampler}", "run.untimed=1")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["status"] == "done" and record["result"]["samples_per_epoch"] == 400
    assert record["result"]["imbalance"] == pytest.approx(expected(f"task.sampler={sampler}", untimed=1))
    assert "largest work of a rank over the mean" in done.stdout


def test_emulated_ranks_wait_for_the_heaviest(tmp_path: Path) -> None:
    """The slowest rank's passes take the time of its own batches: the work that the task says."""
    slow = ["mode=emulate", "algo=ddp", "task.step_seconds=0.2", "task.sampler=random", "run.accumulate=2"]
    done = bench(tmp_path, *VARIED, *slow)
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["result"]["imbalance"] == pytest.approx(expected("task.sampler=random", accumulate=2))
    part = resolved(*VARIED, *slow).task
    rows = list(islice(build(part.target, part.options).work(2, 0), 8))
    shortest = 0.9 * 0.2  # the optimizer's share is no pass
    for step, seconds in enumerate(record["result"]["step_seconds"]):
        work = [rows[2 * step][rank] + rows[2 * step + 1][rank] for rank in range(2)]
        assert seconds > shortest * max(work)


def rows(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = python(folder, "-m", "bagua_bench.loading", *arguments, "--results", "out")
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "out" / f"{arguments[0]}.json").read_text())
    assert "machine" in report and "code" in report
    found: list[dict[str, Any]] = report["rows"]
    return found


def test_balance_shows_every_sampler_and_batching(tmp_path: Path) -> None:
    found = rows(tmp_path, "balance", "--tasks", "transformer", "task.samples=2000", "task.batch=4", "cluster=2x2")
    kinds = [(row["batching"], row["sampler"]) for row in found]
    assert kinds == [("mixed", "random"), ("mixed", "balanced"), ("similar", "random"), ("similar", "balanced")]
    assert {row["steps"] for row in found} == {125} and {row["ranks"] for row in found} == {4}
    work = dict(zip(kinds, found, strict=True))
    assert work["mixed", "balanced"]["imbalance"] < 1.05 < work["mixed", "random"]["imbalance"]
    assert work["similar", "balanced"]["mean"] < 0.8 * work["mixed", "balanced"]["mean"]
    for row in found:
        assert row["largest"] >= row["mean"] and row["worst"] >= row["imbalance"]


def test_the_page_shows_what_the_results_hold() -> None:
    report = json.loads((HOME / "results" / "loading" / "balance.json").read_text())
    page = (HOME / "docs" / "loading.md").read_text()
    for row in report["rows"]:
        numbers = " | ".join(f"{row[key]:.3f}" for key in ("mean", "largest", "imbalance", "worst"))
        assert f"| {row['task']} | {row['batching']} | {row['sampler']} | {numbers} |" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["balance", "--tasks", "vgg16"], "task=vgg16: its samples are all alike; allowed: tasks with task.sampler"),
        (["balance", "--tasks", "nope"], "task=nope: no such task"),
        (["balance", "task.samples=8"], "task.samples=8: 4 ranks x task.batch=32 need 128 samples a step"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "bagua_bench.loading", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]
