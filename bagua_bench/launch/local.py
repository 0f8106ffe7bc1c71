"""Runs cells on this machine: a torchrun agent per server, watched until all ranks are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.launch import servers
from bagua_bench.launch.failures import RunFailed, first_failure
from bagua_bench.network.topology import THIS_MACHINE, Host
from bagua_bench.processes import mailbox, owner
from bagua_bench.results.result import Result

_POLL = 0.1  # seconds
_GRACE = 5.0  # seconds that agents have to end the other ranks after one has failed, and to say which one it was
_GOODBYE = 10.0  # seconds that ranks have to end by themselves after their last cell

Watch = Callable[[dict[str, Any]], None]


class Workers:
    """The processes of all ranks, which run one cell after another."""

    def __init__(self, agents: Sequence[servers.Agent], ranks_per_agent: int, folder: Path) -> None:
        self._agents, self._ranks, self._folder = agents, ranks_per_agent, folder
        self._numbers = count()

    def run(self, cell: Cell, watch: Watch) -> Result:
        """Run a cell. Returns rank 0's result; `watch` gets every progress event.

        RunFailed when a rank fails or makes no progress; then the processes are of no further use.
        """
        number = next(self._numbers)
        mailbox.post(self._folder / f"{number}.json", cell.to_json())
        path = self._folder / f"result-{number}.json"
        self._follow(path, self._folder / f"progress-{number}.jsonl", watch)
        if not path.exists():
            killed = servers.killed(self._agents)
            raise RunFailed(killed or first_failure(self._folder, self._ranks), self._logs())
        return Result.from_json(mailbox.wait(path))

    def dismiss(self) -> None:
        """Let the processes end by themselves, and wait until they have."""
        mailbox.post(self._folder / f"{next(self._numbers)}.json", None)
        deadline = time.monotonic() + _GOODBYE
        while not all(self._ended()) and time.monotonic() < deadline:
            time.sleep(_POLL)

    @property
    def sound(self) -> bool:
        """Whether no process has failed or ended."""
        return not any(self._ended()) and not self._failed()

    def _ended(self) -> list[bool]:
        return [agent.poll() is not None for agent in self._agents]

    def _failed(self) -> bool:
        return any(agent.poll() for agent in self._agents) or any(self._folder.glob("logs/**/error.json"))

    def _follow(self, result: Path, progress: Path, watch: Watch) -> None:
        """Pass progress on until there is a result, or a rank has failed and the agents had time to end the others."""
        seen, failed_at, over = 0, None, False
        while not over:
            time.sleep(_POLL)
            over = result.exists() or all(self._ended())  # what was said before that is there now
            lines, seen = collected(progress, seen)
            for line in lines:
                watch(json.loads(line))
            if failed_at is None and self._failed():
                failed_at = time.monotonic()
            over = over or (failed_at is not None and time.monotonic() - failed_at > _GRACE)

    def _logs(self) -> str:
        """What the agents and their workers printed."""
        paths = sorted(self._folder.glob("agent-*.log"))
        if len(paths) == 1:
            return paths[0].read_text()
        return "".join(f"--- server {number}\n{path.read_text()}" for number, path in enumerate(paths))


def collected(progress: Path, seen: int) -> tuple[list[str], int]:
    """The complete lines of a file from byte `seen` on, and where they end."""
    if not progress.exists():
        return [], seen
    with progress.open() as stream:
        stream.seek(seen)
        complete = stream.read().rpartition("\n")[0]
    return complete.splitlines(), seen + len(complete.encode()) + bool(complete)


@contextmanager
def workers(ranks: int, hosts: Sequence[Host] = (THIS_MACHINE,)) -> Iterator[Workers]:
    """Processes for so many ranks, spread equally over the hosts.

    Whatever happens, no process and no file is left behind.
    """
    with owner.folder() as name:
        folder, agents, each = Path(name), list[servers.Agent](), ranks // len(hosts)
        try:
            servers.start(agents, hosts, each, folder)
            found = Workers(agents, each, folder)
            yield found
            found.dismiss()
        finally:
            servers.end(agents, folder.glob("agent-*.log"))
