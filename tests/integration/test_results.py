"""`bagua-bench compare` and `bagua-bench export` as commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from bagua_bench.results.provenance import HOME
from tests.integration.cli import python

QUICK = HOME / "results" / "quick"


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "bagua_bench.cli", *arguments)


def test_two_cells_are_compared(tmp_path: Path) -> None:
    done = command(tmp_path, "compare", f"{QUICK}:algo=ddp", f"{QUICK}:algo=bytegrad")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:2] for line in lines[:2]] == ["A:", "B:"] and "  algo.name: ddp | bytegrad" in lines
    figure = pd.read_csv(HOME / "results" / "figures" / "quick.csv").set_index("algorithm").loc["bytegrad"]
    assert "no significant difference" in lines[-2] and not figure["faster_than_ddp"]
    assert f"A/A noise {100 * figure['aa_noise']:.1f} %" in lines[-2]
    assert lines[-1] == "comparable: yes"


def test_runs_are_exported(tmp_path: Path) -> None:
    done = command(tmp_path, "export", str(QUICK), "--to", "runs.csv")
    assert done.returncode == 0, done.stderr
    data = pd.read_csv(tmp_path / "runs.csv")
    assert len(data) == 15 and data["throughput"].gt(0).all() and set(data["algo.name"]) > {"ddp", "bytegrad"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "nowhere", str(QUICK)), "nowhere: there are no records"),
        (("compare", str(QUICK), f"{QUICK}:algo=ddp"), "none in common"),
        (("export", "nowhere", "--to", "runs.csv"), "nowhere: there are no records"),
        (("export", str(QUICK), "--to", "runs.xls"), "allowed: .csv, .parquet"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = command(tmp_path, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
