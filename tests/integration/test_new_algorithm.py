"""The two files with which docs/adding.md adds an algorithm suffice: everything else finds the algorithm."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.catalogue import HOME
from tests.integration.cli import bench, python, recorded
from tests.integration.test_readme import FILES

ADDED = ["algorithms/local_sgd.py", "conf/algo/local_sgd.yaml"]
VGG16 = ["mode=simulate", "task=vgg16", "cluster=4x1", "network.bandwidth=1gbit", "run.steps=3"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's sources with the page's two files."""
    folder = tmp_path_factory.mktemp("with_local_sgd")
    for name in ("algorithms", "tasks", "bagua_bench", "conf", "tests", "tools"):
        shutil.copytree(HOME / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HOME / "pyproject.toml", folder)
    for name in ADDED:
        assert not (folder / name).exists()
        (folder / name).write_text(FILES[name])
    return folder


def test_help_lists_it(copy: Path) -> None:
    done = bench(copy, "--help", cold=True)
    assert re.search(r"^algo: .*local_sgd", done.stdout, re.M), done.stdout


def test_it_is_measured(copy: Path) -> None:
    done = bench(copy, "task=quadratic", "algo=local_sgd", "algo.interval=2", "run.steps=9", cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = recorded(copy)[-1]
    result, parameters = record["result"], record["result"]["parameters"]
    assert (record["status"], record["source"]) == ("done", "measured")
    assert len(result["step_seconds"]) == 10, "whole periods"
    assert sum(result["bytes_per_step"][0].values()) == pytest.approx(parameters * 4 / 2)


@pytest.mark.parametrize("mode", ["emulate", "simulate"])
def test_it_is_emulated_and_simulated(copy: Path, mode: str) -> None:
    arguments = [f"mode={mode}", "task=resnet50", "task.step_seconds=0.05", "run.steps=4", "run.warmup=1"]
    done = bench(copy, *arguments, "algo=local_sgd", cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = recorded(copy)[-1]
    assert (record["status"], record["source"]) == ("done", f"{mode}d")
    each = sum(record["result"]["bytes_per_step"][0].values())
    assert each == pytest.approx(4 * 25_557_032 / 4, rel=1e-3), "every fourth step the ring moves the model once"


def test_it_is_advised(copy: Path) -> None:
    done = python(copy, "-m", "bagua_bench.advise", *VGG16[1:4], "cluster.ranks_per_server=1", cold=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    changing = next(number for number, line in enumerate(lines) if line.startswith("learning something else"))
    assert any(line.split()[:1] == ["local_sgd"] for line in lines[changing:]), "a step of it is not DDP's"
    assert not any(line.split()[:1] == ["local_sgd"] for line in lines[:changing])


def test_it_is_drawn_in_a_colour_of_its_own(copy: Path) -> None:
    axes = "campaign.axes=['algo=ddp,gradient_allreduce,local_sgd']"
    done = bench(copy, "campaign=quick", axes, "campaign.rounds=1", *VGG16, cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    done = python(copy, "-m", "bagua_bench.figures", "quick", cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = pd.read_csv(copy / "results" / "figures" / "quick.csv")
    assert "local_sgd" in set(drawn["algorithm"])
    asks = (
        "from bagua_bench.figures import style; print(*map(style.colour, ('local_sgd', 'ddp', 'gradient_allreduce')))"
    )
    own, *others = python(copy, "-c", asks, cold=True).stdout.split()
    assert re.fullmatch("#[0-9a-f]{6}", own) and own not in others


def test_contract_tests_hold_it_to_what_it_declares(copy: Path) -> None:
    """They pass; if it declares a wrong period, one fails."""
    option = copy / ADDED[1]
    arguments = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/contract/test_facts.py", "-k", "local_sgd"]
    done = python(copy, *arguments, cold=True)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 4  # type: ignore[index]
    text = option.read_text()
    option.write_text(text.replace("period: ${algo.interval}", "period: 3"))
    wrong = python(copy, *arguments, cold=True)
    option.write_text(text)
    assert wrong.returncode == 1 and "FAILED" in wrong.stdout


def test_check_gpu_runs_it(copy: Path) -> None:
    report = copy / "report.json"
    arguments = ["check-gpu", "--rehearse", "--parts", "algorithms", "--json", str(report)]
    done = bench(copy, *arguments, cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    status = {one["name"]: one["status"] for one in json.loads(report.read_text())["checks"]}
    assert status["local_sgd over gloo"] == "passed"
