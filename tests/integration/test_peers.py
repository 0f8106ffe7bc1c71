"""Every peer in runs of the suite, on the servers of an emulated network: what the interfaces see is what it says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.catalogue import declared, peers, short
from tests.emulated import leftovers, needs
from tests.integration.cli import bench, recorded
from tests.warm import client

TINY = ["task=vgg16", "task.scale=tiny", "network.bandwidth=400mbit", "run.steps=4"]
MODES = {"measure": ["run.warmup=2"], "emulate": ["mode=emulate", "run.warmup=0", "run.untimed=1"]}
PAIRS = [(name, mode) for name in peers() for mode in MODES if mode in declared(name).modes]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where what a test starts has its temporary files: elsewhere those of killed processes come and go."""
    client.address()  # the process that forks has its own elsewhere
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def left(temporary: Path) -> dict[str, list[str]]:
    """What is left of a run, and what else is on the machine."""
    return {**leftovers(), "folders": [path.name for path in temporary.iterdir()]}


@pytest.mark.parametrize(("name", "mode"), PAIRS)
@needs("auto")
def test_it_runs_in_namespaces_and_its_bytes_are_seen_at_the_interface(
    tmp_path: Path, temporary: Path, name: str, mode: str
) -> None:
    before = left(temporary)
    done = bench(tmp_path, *TINY, *MODES[mode], f"algo={name}", *short(name))
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["status"] == "done"
    traffic = record["network"]["measured"]["traffic"]
    assert min(traffic["counted"]) > 50_000, "too little to tell from headers"
    assert [flag for flag in record["network"]["measured"]["flags"] if "its interface sent" in flag] == []
    assert left(temporary) == before and before["folders"] == []


@pytest.mark.parametrize("mode", MODES)
@needs("auto")
def test_servers_of_its_own_send_sums_and_take_no_batches(tmp_path: Path, mode: str) -> None:
    given = ["algo=parameter_server", "algo.own_machines=1", "cluster.servers=3", "task.batch=4"]
    done = bench(tmp_path, *TINY, *MODES[mode], *given)
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    result, weights = record["result"], 4 * record["result"]["parameters"]
    *workers, server = [sent["flat"] for sent in result["bytes_per_step"]]
    assert server == 2 * weights and all(weights < sent < 1.001 * weights for sent in workers)
    assert result["samples_per_step"] == 8
    assert len(result["losses"]) == len(result["step_seconds"]) + (mode == "emulate")
    assert result["checks"]["passed"] and (mode == "emulate" or result["checks"]["replicas"] == "equal")
    assert [flag for flag in record["network"]["measured"]["flags"] if "its interface sent" in flag] == []
