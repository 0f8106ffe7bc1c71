"""Emulated runs through the front door."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli import bench, recorded

QUICK = ["mode=emulate", "task=resnet50", "run.steps=4", "run.warmup=1", "task.step_seconds=0.3"]


@pytest.mark.parametrize("algo", ["ddp", "bytegrad"])
def test_an_emulated_run_says_what_is_real(tmp_path: Path, algo: str) -> None:
    done = bench(tmp_path, *QUICK, f"algo={algo}")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert (record["status"], record["source"]) == ("done", "emulated")
    result = record["result"]
    assert result["parameters"] == 25_557_032
    assert result["emulation"]["step_seconds_from"] == "task.step_seconds"
    assert any("sleeps" in text for text in result["emulation"]["emulated"])
    phases = result["phase_seconds"]
    assert phases["forward"] == pytest.approx(0.1, rel=0.2)
    assert phases["forward"] + phases["backward"] == pytest.approx(0.3, rel=0.2)
    per_rank = {"ddp": 4 * 25_557_032, "bytegrad": 25_557_032}[algo]
    assert result["bytes_per_step"][0]["flat"] == pytest.approx(per_rank, rel=1e-3)
    assert "emulated" in done.stdout


@pytest.mark.parametrize("haste", [4, 0.5])
def test_a_quicker_or_slower_run_records_the_times_of_the_original(haste: float, tmp_path: Path) -> None:
    """Without a network: what is recorded is the time of the original, not that of the run."""
    done = bench(tmp_path, *QUICK, "algo=ddp", "compute.shrink=100", f"compute.haste={haste}")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    phases = record["result"]["phase_seconds"]
    assert phases["forward"] == pytest.approx(0.1, rel=0.2)
    assert phases["forward"] + phases["backward"] == pytest.approx(0.3, rel=0.2)
    told = record["result"]["emulation"]
    assert sum(told["step_seconds"].values()) == pytest.approx(0.3)
    assert any(f"took {1 / haste:g} times the time that is recorded" in text for text in told["emulated"])


def test_an_impossible_step_time_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, "mode=emulate", "task.step_seconds=-1")
    assert done.returncode == 2
    assert "task.step_seconds=-1: must be positive" in done.stderr
