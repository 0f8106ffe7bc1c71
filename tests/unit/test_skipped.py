"""A campaign goes on without the systems that are not installed; a single run says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bagua_bench.campaign import session
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Job
from bagua_bench.peers import build
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


def test_a_wheel_that_was_built_again_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(build, "_pip", lambda *arguments: asked.append(arguments))
    build.install(Path("horovod-0.28.1.whl"))
    replaced = ("install", "--force-reinstall", "--no-deps", "horovod-0.28.1.whl")
    assert asked == [replaced, ("install", "horovod-0.28.1.whl")], "the second for what it needs"
