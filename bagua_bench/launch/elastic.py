"""Runs a cell that goes on when ranks or servers are lost: a torchrun agent per server, in torch's elastic mode."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from bagua_bench.configuration.cell import Cell, ElasticPart
from bagua_bench.configuration.elastic_settings import text_of
from bagua_bench.elastic import MEET
from bagua_bench.elastic.diary import Diary
from bagua_bench.launch import servers
from bagua_bench.launch.agent import GATE
from bagua_bench.launch.failures import RunFailed, first_failure
from bagua_bench.launch.local import Watch, collected
from bagua_bench.network.topology import THIS_MACHINE, Host
from bagua_bench.processes import gate, mailbox, owner
from bagua_bench.processes.interrupts import deferred
from bagua_bench.results.result import Result

_POLL = 0.1  # seconds
_GRACE = 5.0  # seconds that agents have to end after the last step
_LAST_CALL = 10  # seconds for which agents wait for more of them; on a busy machine they come unequally late
_FIRST_CALL = 180.0  # seconds for which ranks wait with the first step of all while a server that runs is missing
_BEAT, _BEATS = 2, 4  # seconds between signs of life of an agent, and how many may be missing
_KEEPER = 180.0  # seconds in which the store must be there; on a busy machine importing torch takes long
_JOIN = 60.0  # seconds, beyond the run's time-out, for which agents wait until they are enough


def run_elastic(cell: Cell, watch: Watch, hosts: Sequence[Host] | None = None) -> Result:
    """Run a cell on servers, emulated ones or groups of processes here. Returns rank 0's result.

    RunFailed when too few servers are left, or ranks of a server fail more often than they may. No process and no file
    is left behind, apart from the checkpoints in a folder that the user named.
    """
    asked = cell.run.elastic
    assert asked is not None
    with owner.folder() as name:
        folder = Path(name)
        place = Path(asked.folder).resolve() if asked.folder else folder / "checkpoints"
        cell = replace(cell, run=replace(cell.run, elastic=replace(asked, folder=str(place))))
        mailbox.post(folder / "0.json", cell.to_json())
        with _running(cell, asked, hosts or [THIS_MACHINE] * cell.cluster.servers, folder) as run:
            return run.follow(watch)


class _Run:
    """The agents of a run, by server, and what is planned for them."""

    def __init__(self, cell: Cell, asked: ElasticPart, hosts: Sequence[Host], folder: Path) -> None:
        self._cell, self._asked, self._hosts, self._folder = cell, asked, hosts, folder
        self.agents: dict[int, servers.Agent] = {}
        self.keeper: servers.Agent | None = None
        self._port = self._begun = 0
        self._together: float | None = None
        self._away: set[int] = set()
        self._again = [asked.restarts] * len(hosts)
        self._diary, self._seen, self._life = Diary(), 0, time.time()
        back = [(one.back, f"server {one.server} is back", one) for one in asked.outages if one.back is not None]
        lost = [(one.step, f"server {one.server} is lost", one) for one in asked.outages]
        self._plan = sorted([*lost, *back], key=lambda entry: (entry[0], entry[1]))
        self._planned = [(what, one) for _, what, one in self._plan]

    # -- processes --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the store, then all servers."""
        file = self._folder / "port.json"
        arguments = ["-m", "bagua_bench.launch.keeper", str(os.getpid()), self._hosts[0].address, str(file)]
        environment = servers.environment(self._hosts[0], self._cell.cluster.ranks)
        with deferred():
            self.keeper = servers.start_python(self._hosts[0], arguments, self._folder / "keeper.log", environment)
        deadline = time.monotonic() + _KEEPER
        while not file.exists():
            if self.keeper.poll() is not None or time.monotonic() > deadline:
                raise RunFailed("the store in which servers meet did not start", self._logs())
            time.sleep(_POLL)
        self._port = mailbox.wait(file)
        for server in range(len(self._hosts)):
            self._begin(server)

    def _begin(self, server: int) -> None:
        host, cluster = self._hosts[server], self._cell.cluster
        settings = {
            "is_host": 0,
            "last_call_timeout": _LAST_CALL,
            "keep_alive_interval": _BEAT,
            "keep_alive_max_attempt": _BEATS,
            "join_timeout": round(self._cell.run.timeout + _JOIN),
        }
        place, self._begun = f"{self._hosts[0].address}:{self._port}", self._begun + 1
        if self._asked.regroup:  # every server has a job of its own, in which only its own ranks are started again
            job = ["--nnodes=1", f"--rdzv-id=bagua-bench-{self._begun}"]
        else:
            job = [f"--nnodes={self._asked.servers}:{len(self._hosts)}", "--rdzv-id=bagua-bench"]
        rendezvous = [
            *job,
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={place}",
            f"--rdzv-conf={','.join(f'{key}={value}' for key, value in settings.items())}",
            f"--local-addr={host.address}",
            f"--max-restarts={self._asked.restarts}",
            f"--monitor-interval={_POLL}",
        ]
        # torch's agents would share a store with their workers, whose address goes stale with the first server
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", GATE: str(self._folder), MEET: f"{place}/{server}"}
        with deferred():
            each = cluster.ranks_per_server
            self.agents[server] = servers.start_one(host, server, rendezvous, each, cluster.ranks, self._folder, own)

    def _lose(self, server: int) -> None:
        """End all processes of a server at once, as a power cut does."""
        agent = self.agents[server]
        with suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()

    # -- the course of the run --------------------------------------------------------------------------------

    def follow(self, watch: Watch) -> Result:
        """Pass events on, do what is planned, until there is a result. RunFailed if there will be none."""
        result = self._folder / "result-0.json"
        while not result.exists():
            time.sleep(_POLL)
            self._open_gates()
            self._events(watch)
            self._keep_plan()
            self._keep_alive()
        found = Result.from_json(mailbox.wait(result))
        self._events(watch)
        told = self._diary.told()
        survived = [event.event for event in told.interruptions]
        for what, one in self._planned:
            if not any(what in event for event in survived):
                raise RunFailed(f"elastic.outages={text_of(one)}: the run was over before it; raise run.steps")
        mailbox.post(self._folder / "1.json", None)
        deadline = time.monotonic() + _GRACE
        while any(agent.poll() is None for agent in self.agents.values()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        return replace(found, elastic=told)

    def _open_gates(self) -> None:
        """Let servers begin together: agents once all are there, and ranks that are too few once there is a reason."""
        if self._together is None and gate.ready(self._folder) >= len(self._hosts):
            gate.open_up(self._folder)
            self._together = time.monotonic()
        late = self._together is not None and time.monotonic() > self._together + _FIRST_CALL
        if late or self._diary.step or self._away or any(agent.poll() is not None for agent in self.agents.values()):
            gate.open_to_few(self._folder)

    def _events(self, watch: Watch) -> None:
        lines, self._seen = collected(self._folder / "progress-0.jsonl", self._seen)
        for event in map(json.loads, lines):
            self._diary.note(event)
            watch(event)

    def _keep_plan(self) -> None:
        while self._plan and self._diary.step >= self._plan[0][0]:
            _, what, one = self._plan.pop(0)
            self._diary.happened(what)
            if one.server in self._away:
                self._away.remove(one.server)
                self._begin(one.server)
            else:
                self._away.add(one.server)
                self._lose(one.server)
            self._life = time.time()

    def _keep_alive(self) -> None:
        """Start a server again whose agent was killed; RunFailed if too few are left."""
        for server, agent in self.agents.items():
            killed = (agent.poll() or 0) < 0 and server not in self._away
            if killed and self._again[server]:
                self._again[server] -= 1
                self._diary.happened(f"server {server} was killed")
                self._begin(server)
        alive = sum(agent.poll() is None for agent in self.agents.values())
        if alive < self._asked.servers and not (self._folder / "result-0.json").exists():
            time.sleep(_POLL)  # a result may be on its way
            if (self._folder / "result-0.json").exists():
                return
            reason = first_failure(self._folder, self._cell.cluster.ranks_per_server, self._life)
            need = f"elastic.servers={self._asked.servers} are needed"
            raise RunFailed(f"{alive} servers are left, {need}: {reason}", self._logs())

    def _logs(self) -> str:
        return "".join(f"--- {path.stem}\n{path.read_text()}" for path in sorted(self._folder.glob("*.log")))


@contextmanager
def _running(cell: Cell, asked: ElasticPart, hosts: Sequence[Host], folder: Path) -> Iterator[_Run]:
    run = _Run(cell, asked, hosts, folder)
    try:
        run.start()
        yield run
    finally:
        servers.end([*run.agents.values(), *filter(None, [run.keeper])], folder.glob("*.log"))
