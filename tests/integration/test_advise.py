"""Advice and calibration through their commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, timeout=200)


def test_advice_ranks_and_explains(tmp_path: Path) -> None:
    done = command(tmp_path, "bagua_bench.advise", "task=vgg16", "cluster=bagua_paper", "network.bandwidth=1gbit")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "step_seconds" in lines[0] and "uncertainty" in lines[0]
    places = {line.split()[0]: number for number, line in reversed(list(enumerate(lines)))}
    assert places["bytegrad"] < places["gradient_allreduce"]
    assert "bandwidth-bound" in done.stdout
    times_ddp = lines[0].split().index("times_ddp")
    assert {line.split()[times_ddp] for line in lines if line.split()[0] == "ddp"} == {"1"}
    assert float(lines[places["bytegrad"]].split()[times_ddp]) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bagua_bench.advise", "task=vgg"], "task=vgg: no such task"),
        (["bagua_bench.simulate", "calibrate", "--cluster", "mine"], "allowed without --records"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = command(tmp_path, *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_figures_of_the_page(tmp_path: Path) -> None:
    ran = command(tmp_path, "bagua_bench", "campaign=paper", "campaign.axes=['algo=ddp,async']", "task=vgg16",
                  "network.bandwidth=100gbit", "transport=nccl")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    drawn = command(tmp_path, "bagua_bench.figures", "paper", "--results", str(tmp_path / "results"))
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "results" / "figures" / "paper-vgg16_128gpu.pdf").exists()
