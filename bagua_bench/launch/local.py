"""Runs a cell on this machine: a torchrun agent per server, watched until all ranks are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.launch import servers
from bagua_bench.launch.failures import RunFailed, first_failure
from bagua_bench.network.topology import THIS_MACHINE, Host
from bagua_bench.processes import owner
from bagua_bench.results.result import Result

_POLL = 0.1  # seconds
_GRACE = 2.0  # seconds that agents have to end the other ranks after one has failed

Watch = Callable[[dict[str, Any]], None]


def run_local(cell: Cell, watch: Watch, hosts: Sequence[Host] = (THIS_MACHINE,)) -> Result:
    """Run all ranks of a cell, spread equally over the hosts. Returns rank 0's result.

    `watch` gets every progress event. RunFailed when a rank fails or makes no progress; whatever happens, no process
    and no file is left behind.
    """
    ranks = cell.cluster.ranks // len(hosts)
    with owner.folder() as name:
        folder, agents = Path(name), list[servers.Agent]()
        (folder / "config.json").write_text(json.dumps(cell.to_json()))
        try:
            servers.start(agents, hosts, ranks, folder)
            _follow(agents, folder, watch)
            killed = servers.killed(agents)
        finally:
            servers.end(agents)
        if not (folder / "result.json").exists():
            raise RunFailed(killed or first_failure(folder, ranks), _logs(folder))
        return Result.from_json(json.loads((folder / "result.json").read_text()))


def _follow(agents: Sequence[servers.Agent], folder: Path, watch: Watch) -> None:
    """Pass progress on until all agents end, or a rank has failed and the agents had time to end the others."""
    progress, seen, failed_at = folder / "progress.jsonl", 0, None
    while any(agent.poll() is None for agent in agents):
        if failed_at is not None and time.monotonic() - failed_at > _GRACE:
            return
        time.sleep(_POLL)
        if progress.exists():
            with progress.open() as stream:
                stream.seek(seen)
                complete = stream.read().rpartition("\n")[0]
            seen += len(complete.encode()) + bool(complete)
            for line in complete.splitlines():
                watch(json.loads(line))
        if failed_at is None and (any(agent.poll() for agent in agents) or any(folder.glob("logs/**/error.json"))):
            failed_at = time.monotonic()


def _logs(folder: Path) -> str:
    """What the agents and their workers printed."""
    paths = sorted(folder.glob("agent-*.log"))
    if len(paths) == 1:
        return paths[0].read_text()
    return "".join(f"--- server {number}\n{path.read_text()}" for number, path in enumerate(paths))
