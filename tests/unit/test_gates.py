"""When the servers of an elastic run begin: together, unless one is lost or late."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bagua_bench.launch import elastic
from bagua_bench.network.topology import THIS_MACHINE
from bagua_bench.processes import gate
from tests.catalogue import resolved


def run_of(folder: Path) -> Any:
    """A run of three servers whose agents are alive and have not come."""
    cell = resolved("run.elastic=true", "cluster.servers=3")
    assert cell.run.elastic is not None
    run = elastic._Run(cell, cell.run.elastic, [THIS_MACHINE] * 3, folder)
    run.agents = {server: SimpleNamespace(poll=lambda: None) for server in range(3)}  # type: ignore[misc]
    return run


def come(folder: Path, number: int) -> None:
    for _ in range(number):
        (folder / f"ready-{os.urandom(4).hex()}").touch()


def test_agents_begin_once_all_are_there(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    come(tmp_path, 2)
    run._open_gates()
    assert not (tmp_path / "open").exists()
    come(tmp_path, 1)
    run._open_gates()
    assert (tmp_path / "open").exists() and not (tmp_path / "few").exists()


@pytest.mark.parametrize("why", ["late", "lost", "ended", "trained"])
def test_fewer_ranks_begin_only_with_a_reason(tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    come(tmp_path, 3)
    run._open_gates()
    assert not (tmp_path / "few").exists()
    waiting = threading.Thread(target=gate.pass_as_few, args=(tmp_path,), daemon=True)
    waiting.start()
    if why == "late":
        monkeypatch.setattr(elastic, "_FIRST_CALL", 0.0)
        time.sleep(0.01)
    elif why == "lost":
        run._away.add(1)
    elif why == "ended":
        run.agents[2] = SimpleNamespace(poll=lambda: -9)
    else:
        run._diary.note({"phase": "beginning", "ranks": 3, "after": 0})
        run._open_gates()
        assert not (tmp_path / "few").exists(), "nobody has trained"
        run._diary.note({"phase": "training", "step": 1, "at": 1.0})
    assert waiting.is_alive()
    run._open_gates()
    waiting.join(60)
    assert not waiting.is_alive()
