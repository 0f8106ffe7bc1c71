"""Marks of ownership, and folders of killed processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bagua_bench.processes import owner


def test_marks_tell_living_processes_from_ended_ones() -> None:
    assert not owner.is_stale(owner.mark() + "s0")
    assert not owner.is_stale("bagua-bench-other"), "nobody's"
    pid, started, where = owner.mark().split("-")[2:5]
    assert owner.is_stale(f"bagua-bench-{pid}-{int(started) - 1}-{where}-s0"), "the id was used again"
    assert not owner.is_stale(f"bagua-bench-{pid}-{int(started) - 1}-another-s0"), "another machine or container"
    code = "from bagua_bench.processes import owner; print(owner.mark())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert owner.is_stale(ended.stdout.strip() + "s0")


def test_folders_of_killed_processes_go_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder for temporary files of the test's own: any other process of the suite would remove it, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = (
        "import os; from bagua_bench.processes import owner; f = owner.folder(); print(f.name, flush=True); os.abort()"
    )
    left = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert left.is_dir() and left.parent == tmp_path
    with owner.folder() as own, owner.folder() as other:
        assert not left.exists()
        assert Path(own).is_dir() and Path(other).is_dir()
