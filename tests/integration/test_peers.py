"""Every peer in runs of the suite, on the servers of an emulated network: what the interfaces see is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalogue import peers, short
from tests.emulated import leftovers, needs
from tests.integration.cli import bench, recorded

TINY = ["task=vgg16", "task.scale=tiny", "network.bandwidth=400mbit", "run.steps=4"]
MEASURED = ["run.warmup=2"]
EMULATED = ["mode=emulate", "run.warmup=0", "run.untimed=1"]


@pytest.mark.parametrize("how", [MEASURED, EMULATED], ids=["measured", "emulated"])
@pytest.mark.parametrize("name", peers())
@needs("auto")
def test_it_runs_in_namespaces_and_its_bytes_are_seen_at_the_interface(
    tmp_path: Path, name: str, how: list[str]
) -> None:
    before = leftovers()
    done = bench(tmp_path, *TINY, *how, f"algo={name}", *short(name))
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["status"] == "done"
    traffic = record["network"]["measured"]["traffic"]
    assert min(traffic["counted"]) > 50_000, "too little to tell from headers"
    assert [flag for flag in record["network"]["measured"]["flags"] if "its interface sent" in flag] == []
    assert leftovers() == before
