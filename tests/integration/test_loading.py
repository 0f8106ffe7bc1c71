"""Samples of different lengths in whole runs, and `bagua-bench loading`."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from PIL import Image

from bagua_bench.configuration.components import build
from tasks import filter_bank
from tests.catalogue import HOME, resolved
from tests.integration.cli import bench, python, recorded
from tests.squares import Squares

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


def test_the_page_s_example_of_a_cache_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"<!-- tested -->\n```python\n(.*?)```", (HOME / "docs" / "loading.md").read_text(), re.S)

    class Recordings(Squares):
        def __init__(self, root: str) -> None:
            super().__init__(tmp_path / root)

    space = {"torch": torch, "Recordings": Recordings, "filter_bank": filter_bank, "sampler": range(30)}
    exec(code.replace("/scratch", str(tmp_path)), space)
    loader = space["loader"]
    for _ in range(2):
        assert sum(len(indices) for _, indices in loader) == 30
    assert len(Squares(tmp_path / "data").computed()) == 30


def photographs(folder: Path, count: int) -> None:
    for number in range(count):
        for part in ("train", "val"):
            path = folder / part / str(number % 2) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30), (9 * number % 256, 80, 120)).save(path)


@pytest.mark.parametrize("task", ["resnet50", "transformer"])
def test_a_run_fills_a_cache_and_the_next_one_learns_the_same_from_it(tmp_path: Path, task: str) -> None:
    photographs(tmp_path / "data", 24)
    short = [f"task={task}", "task.scale=tiny", "task.batch=4", "algo=ddp", "run.steps=4", "run.warmup=1"]
    own = ["task.data=data", "run.evaluate=false"] if task == "resnet50" else ["task.sampler=random", "task.samples=40"]
    sizes = []
    for cache in ("null", "kept", "kept"):
        done = bench(tmp_path, *short, *own, f"task.cache={cache}")
        assert done.returncode == 0, done.stdout + done.stderr
        sizes += [path.stat().st_size for path in (tmp_path / "kept").glob("data.mdb")]
    losses = [record["result"]["losses"] for record in recorded(tmp_path)]
    assert losses[0] == losses[1] == losses[2] and len({record["cell"] for record in recorded(tmp_path)}) == 1
    assert len(sizes) == 2 and sizes[0] == sizes[1] > 20_000, "the second run computes nothing"


def test_cache_shows_the_first_epoch_beside_the_second(tmp_path: Path) -> None:
    short = ["--samples", "24", "--rounds", "1", "task.batch=4", "task.scale=tiny"]
    found = rows(tmp_path, "cache", *short)
    assert [row["task"] for row in found] == ["resnet50", "transformer"]
    for row in found:
        assert (row["samples"], row["ranks"], row["rounds"]) == (24, 2, 1)
        assert [len(row["seconds"][key]) for key in ("without", "first", "second")] == [2, 1, 1]
        assert row["megabytes"] > 0.05 and row["factor"] == pytest.approx(row["plain"] / row["second"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=vgg16", "task.cache=kept"], "task.cache=kept: the bundled digits cost nothing to load; allowed: null"),
        (["task=transformer", "task.cache=kept"], "task.cache=kept: without a sampler no sample comes twice"),
        (["task=bert_large", "+task.cache=kept"], "task.cache=kept: no such key"),
        (
            ["task=transformer", "task.sampler=random", "task.cache=kept", "mode=simulate"],
            "task.cache=kept: mode=simulate loads no data; allowed: null",
        ),
        (
            ["task=transformer", "task.sampler=random", "task.cache=file/below"],
            "task.cache=file/below: must be a folder that can be written to, or redis://HOST:PORT/DB",
        ),
        (["task=transformer", "task.sampler=random", "task.cache=5"], "task.cache=5: expected a text or null"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_before_anything_starts(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = bench(tmp_path, *overrides)
    assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["balance", "--tasks", "vgg16"], "task=vgg16: its samples are all alike; allowed: tasks with task.sampler"),
        (["balance", "--tasks", "nope"], "task=nope: no such task"),
        (["cache", "--tasks", "bert_large"], "task=bert_large: has no cache; allowed: tasks with task.cache"),
        (["cache", "mode=emulate", "--samples", "4"], "task.cache="),
        (["balance", "task.samples=8"], "task.samples=8: 4 ranks x task.batch=32 need 128 samples a step"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "bagua_bench.loading", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]
