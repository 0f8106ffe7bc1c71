"""Runs a cell on this machine: one torchrun agent, watched until all ranks are done."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bagua_bench.cell import world_size
from bagua_bench.launch.failures import RunFailed, first_failure

_POLL = 0.1  # seconds
_GRACE = 2.0  # seconds between asking an agent to end and killing it

_MALLOC = {
    # Gradients and buffers of hundreds of MB come and go in every step. By default glibc returns them to the
    # kernel each time, and the page faults cost more than the communication; keep them instead.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**36),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
}


def run_local(config: dict[str, Any], watch: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run all ranks of a resolved configuration; `watch` gets every progress event. Returns rank 0's result.

    RunFailed when a rank fails or makes no progress; whatever happens, no process and no file is left behind.
    """
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        with (folder / "agent.log").open("w") as log:
            agent = subprocess.Popen(
                _command(folder, world_size(config)),
                env=_environment(world_size(config)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _follow(agent, folder, watch)
        finally:
            _end(agent)
        if not (folder / "result.json").exists():
            raise RunFailed(first_failure(folder), (folder / "agent.log").read_text())
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result


def _command(folder: Path, ranks: int) -> list[str]:
    agent = [sys.executable, "-m", "bagua_bench.launch.agent", str(folder)]
    torchrun = ["--standalone", f"--nproc-per-node={ranks}", f"--log-dir={folder / 'logs'}"]
    return [*agent, *torchrun, "-m", "bagua_bench.training.worker", str(folder)]


def _environment(ranks: int) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **_MALLOC,
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
    }


def _follow(agent: subprocess.Popen[bytes], folder: Path, watch: Callable[[dict[str, Any]], None]) -> None:
    """Pass progress on until the agent ends, or a rank has failed and the agent had time to end the others."""
    progress, seen, failed_at = folder / "progress.jsonl", 0, None
    while agent.poll() is None and (failed_at is None or time.monotonic() - failed_at < _GRACE):
        time.sleep(_POLL)
        if progress.exists():
            with progress.open() as stream:
                stream.seek(seen)
                complete = stream.read().rpartition("\n")[0]
            seen += len(complete.encode()) + bool(complete)
            for line in complete.splitlines():
                watch(json.loads(line))
        if failed_at is None and any(folder.glob("logs/**/error.json")):
            failed_at = time.monotonic()


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End the agent and its workers: workers die with their agent."""
    if agent.poll() is None:
        agent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()
