"""Torch's own test cases of process groups as a command, over this transport."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.transport import torch_cases
from tools.transport.torch_cases import FAILED, PASSED, SKIPPED, Outcome

HOME = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("built")
pytest.importorskip("expecttest", reason="torch's test cases need it: pip install expecttest")


def test_cases_pass_fail_and_are_skipped_each_with_a_reason(tmp_path: Path) -> None:
    """Sparse tensors are what this transport refuses and gloo does not; on CUDA devices there is nothing to test."""
    report = tmp_path / "cases.json"
    command = [sys.executable, "-m", "tools.transport", "torch-cases", "--only", "all_reduce_sum", "--ranks", "3"]
    done = subprocess.run([*command, "--json", str(report)], cwd=HOME, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    cases = json.loads(report.read_text())["cases"]
    for name in ("test_all_reduce_sum", "test_all_reduce_sum_async", "test_all_reduce_sum_complex"):
        assert cases[name] == {"gloo": PASSED, "bagua_net": PASSED}
    assert cases["test_sparse_all_reduce_sum"] == {
        "gloo": PASSED,
        "bagua_net": f"{FAILED}: ValueError: bagua_net moves dense tensors, not torch.sparse_coo; use gloo",
    }
    assert cases["test_all_reduce_sum_cuda"]["bagua_net"].startswith(f"{SKIPPED}: ")
    assert "bagua_net test_all_reduce_sum: passed" in done.stdout


def test_a_backend_that_torch_does_not_know_is_one_line() -> None:
    with pytest.raises(ValueError, match="no backend 'carrier_pigeon'; allowed: ") as caught:
        list(torch_cases.run("carrier_pigeon", 2))
    assert "\n" not in str(caught.value)


def test_worse_is_what_fails_where_the_other_one_passes() -> None:
    outcomes = [
        *(Outcome("gloo", name, what) for name, what in (("a", PASSED), ("b", FAILED), ("c", PASSED), ("d", SKIPPED))),
        *(Outcome("new", name, what) for name, what in (("a", FAILED), ("b", FAILED), ("c", SKIPPED), ("d", FAILED))),
    ]
    assert [one.case for one in torch_cases.worse(outcomes, "new", "gloo")] == ["a"]
