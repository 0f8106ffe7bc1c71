"""`check-gpu` where there is no GPU: it says so, and its rehearsal runs with nothing but torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bagua_bench.gpu import verdicts

HOME = Path(__file__).resolve().parents[2]
MISSING = ("hydra", "omegaconf", "yaml", "rich", "pandas", "matplotlib", "scipy", "sklearn", "psutil", "torchvision",
           "transformers", "triton", "numpy")  # fmt: skip


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it where everything but torch is missing."""
    for name in MISSING:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    command = [sys.executable, "-m", "bagua_bench", "check-gpu", "--json", str(folder / "report.json"), *options]
    paths = os.pathsep.join([str(folder), str(HOME)])
    return subprocess.run(
        command, cwd=HOME, env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}, capture_output=True,
        text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 2
    said = "check-gpu: no CUDA device, nothing checked; --rehearse tries the script on the CPU"
    assert done.stderr.splitlines()[-1] == said  # behind what torch says where NumPy is missing
    assert not (tmp_path / "report.json").exists()


def test_rehearsal_runs_every_part_and_is_marked_as_one(tmp_path: Path) -> None:
    done = check(tmp_path, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rehearsal"]
    assert report["device"] == "cpu"
    status = {one["name"]: one["status"] for one in report["checks"]}
    assert {name for name, word in status.items() if word == "skipped"} == {
        "codecs", "algorithms over nccl_bagua_net", "profile, fp32, vgg16",
    }  # fmt: skip
    for name in ("ByteGrad over gloo", "QAdam over gloo", "engine / DDP, 2 ranks, vgg16", "profile, fp32"):
        assert status[name] == "passed"


def test_verdicts_fail_what_is_slow_differs_or_waits() -> None:
    def ranks(value: float, waits: str | None = None) -> list[dict[str, object]]:
        return [{"ByteGrad": {"weights": torch.tensor([1.0, value]), "waits": waits}}] * 2

    def verdict(outcome: list[dict[str, object]]) -> str:
        return str(verdicts.algorithms("nccl", outcome, ranks(2.0))[0]["status"])

    assert verdict(ranks(2.0)) == "passed"
    assert verdict(ranks(2.1)) == verdict(ranks(float("nan"))) == verdict(ranks(2.0, "a wait")) == "failed"
    row = {"operation": "encode", "mebibytes": 64.0, "bytes_per_second": 1e12}
    shares = [verdicts.codecs([{**row, "of_copy": share}])[0]["status"] for share in (0.69, 0.71)]
    assert shares == ["failed", "passed"]
    ratio = {"vgg16": {"throughput_ratio": 0.97, "ratios": [0.97]}}
    assert verdicts.ratios("engine", [ratio], 1 / 1.02)[0]["status"] == "failed"
    assert verdicts.ratios("engine", [RuntimeError("lost")], None)[0]["detail"] == "lost"
