"""A campaign goes on without the systems that are not installed; a single run says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bagua_bench.campaign import session
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Job
from tests.catalogue import resolved


def test_a_campaign_skips_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "find_spec", lambda package: None)
    cells = [
        resolved("algo=horovod", "task=quadratic", f"run.results={tmp_path}"),
        resolved("algo=ddp", "mode=simulate", "task=vgg16", "cluster=bagua_paper", f"run.results={tmp_path}"),
    ]
    (tmp_path / "some").mkdir()
    assert session.run_jobs([Job(cell, 0) for cell in cells], "some", resume=True) == []
    lines = (tmp_path / "some" / "records.jsonl").read_text().splitlines()
    skipped, done = map(json.loads, lines)
    assert (skipped["status"], skipped["result"], done["status"]) == ("skipped", None, "done")
    assert skipped["reason"].endswith("which is not installed: bagua-bench peers build horovod")
