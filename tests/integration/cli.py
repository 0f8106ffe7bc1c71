"""Runs the command as a user would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from bagua_bench.results import records
from tests.warm import client as warm

Env = Mapping[str, str] | None
COMMAND = [sys.executable, "-m", "bagua_bench"]
TINY = ["task=quadratic", "transport=gloo", "run.steps=3", "run.warmup=1"]
PATIENCE = 600.0  # seconds for what takes a few on a quiet machine; nobody waits longer than until it is there


def python(folder: Path, *arguments: str, env: Env = None, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a folder: in a fork of a process that has imported everything or, if `cold`, anew."""
    if not cold:
        return warm.run(folder, *arguments, env=env)
    command = [sys.executable, *arguments]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)


def bench(folder: Path, *arguments: str, env: Env = None, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `python -m bagua_bench ARGUMENTS` in a folder."""
    return python(folder, *COMMAND[1:], *arguments, env=env, cold=cold)


def start(folder: Path, *arguments: str, stderr: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the command in its own session. It receives SIGINT even if these tests run in the background."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


Started = subprocess.Popen[bytes] | warm.Running
TRAINS = b": timed\n"


@contextmanager
def training(folder: Path, *arguments: str, cold: bool = False) -> Iterator[tuple[Started, list[psutil.Process]]]:
    """The command and its two workers, once they take timed steps; killed at the end."""
    with tempfile.TemporaryFile() as said, Path(os.devnull).open("wb") as nothing:
        if cold:
            parent: Started = start(folder, *arguments, stderr=said)
        else:
            parent = warm.start(folder, *COMMAND[1:], *arguments, out=nothing, err=said)
        try:
            deadline = time.monotonic() + PATIENCE
            while TRAINS not in os.pread(said.fileno(), 2**20, 0):
                assert parent.poll() is None and time.monotonic() < deadline, os.pread(said.fileno(), 2**20, 0)
                time.sleep(0.02)
            found = workers(parent.pid)
            assert len(found) == 2
            yield parent, found
        finally:
            parent.kill()
            parent.wait()


@contextmanager
def begun(folder: Path, *arguments: str) -> Iterator[warm.Running]:
    """The command, and processes that it starts anew, in forks of one that has imported everything; killed at the end.

    What is started again in the middle of a run is there at once, so that the run is not over before.
    """
    with Path(os.devnull).open("wb") as nothing:
        parent = warm.start(folder, *COMMAND[1:], *arguments, out=nothing, err=nothing)
        try:
            yield parent
        finally:
            parent.kill()
            parent.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    """AssertionError if a condition does not come true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


def recorded(folder: Path, campaign: str = "runs") -> list[records.Record]:
    path = folder / "results" / campaign / "records.jsonl"
    return records.read([path]) if path.exists() else []


def workers(of: int) -> list[psutil.Process]:
    """Worker processes below a process, by command line."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if "bagua_bench.worker.rank" in process.cmdline() and "launch.agent" not in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def folder_of(worker: psutil.Process) -> Path:
    """The folder of a worker's run; a fork's command line has room behind its arguments."""
    return Path([text for text in worker.cmdline() if text][-2])


def server_of(worker: psutil.Process) -> int:
    """The number of a worker's server, from the command line of its agent."""
    agent = worker.parent()
    found = agent and re.search(r"failures-(\d+)\.json", " ".join(agent.cmdline()))
    assert found
    return int(found[1])


def leftovers(folder: Path) -> list[str]:
    """Command lines of agents and workers that were started in `folder` and are alive."""
    found = [p.info for p in psutil.process_iter(["cmdline", "cwd"]) if p.info["cwd"] == str(folder.resolve())]
    lines = [" ".join(info["cmdline"] or []) for info in found]
    return [line for line in lines if "bagua_bench.launch.agent" in line or "bagua_bench.worker.rank" in line]
