"""The ends of runs: what is passed on, what is read of failures, and that the last process is gone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bagua_bench.launch import servers
from bagua_bench.launch.failures import first_failure
from bagua_bench.launch.local import Workers
from bagua_bench.network.topology import THIS_MACHINE


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


WORKER = "import os, time; time.sleep(1); open('ended', 'w').close()"
AGENT = f"""
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], start_new_session=True)
open("worker.part", "w").write(str(worker.pid))
os.rename("worker.part", "worker")
time.sleep(600)
"""


def test_the_end_waits_for_those_whose_agent_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel kills workers with their agent, they end a moment later; this one takes a second."""
    monkeypatch.setattr(servers, "_GONE", 300.0)
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "agent-0.log"
    agent = servers.start_python(THIS_MACHINE, ["-c", AGENT], log, os.environ)
    while not Path("worker").exists():
        assert agent.poll() is None
        time.sleep(0.02)
    worker = int(Path("worker").read_text())
    agent.kill()
    servers.end([agent], [log])
    assert Path("ended").exists() and not lives(worker)


def test_a_run_that_is_over_at_once_has_told_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bagua_bench.launch.local.Result.from_json", lambda found: found)
    events = [{"phase": "timed", "step": step} for step in range(3)]
    (tmp_path / "progress-0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "result-0.json").write_text("{}")
    told: list[dict[str, Any]] = []
    agents: Any = [SimpleNamespace(poll=lambda: None)]
    cell: Any = SimpleNamespace(to_json=dict)
    Workers(agents, 1, tmp_path).run(cell, told.append)
    assert told == events


def test_an_error_that_is_being_written_is_not_yet_one(tmp_path: Path) -> None:
    whole = '{"message": {"message": "ValueError: NaN", "extraInfo": {"timestamp": 5}}}'
    for server, text in (("0", whole), ("1", whole[:20])):
        place = tmp_path / "logs" / server / "run" / "attempt_0" / "0"
        place.mkdir(parents=True)
        (place / "error.json").write_text(text)
    assert first_failure(tmp_path, 1) == "rank 0: ValueError: NaN"
