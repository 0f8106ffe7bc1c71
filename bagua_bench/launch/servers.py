"""The torchrun agents of a run, one per server, from start to end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from bagua_bench.network.commands import PATH
from bagua_bench.network.topology import Host
from bagua_bench.processes.interrupts import deferred

_GRACE = 2.0  # seconds between asking agents to end and killing them
_GONE = 2.0  # seconds, at most, until those who were killed have ended
_POLL = 0.005  # seconds
_PORT = 29500  # of the rendezvous on the first server; emulated servers have all their ports to themselves

MALLOC = {
    # Gradients and buffers of hundreds of MB come and go in every step. By default glibc returns them to the
    # kernel each time, and the page faults cost more than the communication; keep them instead.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**36),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
}
"""What ranks of a run tell their memory allocator."""

Agent = subprocess.Popen[bytes]


def start(agents: list[Agent], hosts: Sequence[Host], ranks: int, folder: Path) -> None:
    """Start an agent with `ranks` workers on every host, and append each to `agents` at once.

    The agent of server k prints to FOLDER/agent-k.log.
    """
    for server, host in enumerate(hosts):
        with deferred():
            agents.append(start_one(host, server, _rendezvous(hosts, server), ranks, len(hosts) * ranks, folder))


def start_one(
    host: Host,
    server: int,
    rendezvous: Sequence[str],
    ranks: int,
    world: int,
    folder: Path,
    more: Mapping[str, str] | None = None,
) -> Agent:
    """Start the agent of one server with `ranks` of `world` workers; `rendezvous` tells it where agents meet.

    more: variables of the environment. The caller defers interrupts until it can end the agent.
    """
    agent = ["bagua_bench.launch.agent", str(os.getpid()), str(folder / f"failures-{server}.json")]
    files = [f"--log-dir={folder / 'logs' / str(server)}", f"--nproc-per-node={ranks}"]
    worker = ["-m", "bagua_bench.worker.rank", str(folder)]
    arguments = ["-m", *agent, *rendezvous, *files, *worker]
    own = {"TMPDIR": str(folder), **(more or {})}  # what they forget there, or leave when killed, goes with the run
    return start_python(host, arguments, folder / f"agent-{server}.log", {**environment(host, world), **own})


def start_python(host: Host, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Agent:
    """Start Python on a host, in a session of its own; what it prints is added to `log`.

    All that it starts share its lock of the file, which lasts until the last of them has ended.
    """
    with log.open("a") as stream:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_SH)
        return subprocess.Popen(
            [*host.prefix, sys.executable, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _rendezvous(hosts: Sequence[Host], server: int) -> list[str]:
    """Where the agents meet: on the first server, over the emulated network."""
    if len(hosts) == 1:
        return ["--standalone"]
    master = [f"--master-addr={hosts[0].address}", f"--master-port={_PORT}"]
    return [f"--nnodes={len(hosts)}", f"--node-rank={server}", f"--local-addr={hosts[server].address}", *master]


def environment(host: Host, ranks: int) -> dict[str, str]:
    """Variables for the processes of a host, where `ranks` share this machine."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = dict(os.environ)
    if host.namespace:
        inherited.pop("BAGUA_NET_CONGESTION", None)  # an emulated network has its own
    return {
        **inherited,
        **MALLOC,
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": host.interface,
        **({"NCCL_SOCKET_IFNAME": host.interface} if host.namespace else {}),
        "PATH": PATH,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
    }


def killed(agents: Sequence[Agent]) -> str | None:
    """One line about an agent that was killed by a signal; None if there is none."""
    for server, agent in enumerate(agents):
        if (agent.poll() or 0) < 0:
            return f"agent of server {server}: killed by {signal.Signals(-agent.returncode).name}"
    return None


@deferred()
def end(agents: Sequence[Agent], logs: Iterable[Path]) -> None:
    """End the agents and their workers, which die with their agent. Interrupts are deferred until then.

    logs: to which they print.
    """
    for agent in agents:
        if agent.poll() is None:
            agent.terminate()
    deadline = time.monotonic() + _GRACE
    for agent in agents:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(max(0.0, deadline - time.monotonic()))
    for agent in agents:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
    deadline = time.monotonic() + _GONE
    for log in logs:
        with log.open() as stream:
            while not _is_ours_alone(stream) and time.monotonic() < deadline:
                time.sleep(_POLL)


def _is_ours_alone(log: IO[str]) -> bool:
    """Whether all who print to a file have ended: the kernel takes a moment for those whose agent was killed."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody knows
        return True
    return True
