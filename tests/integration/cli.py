"""Runs the command as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from bagua_bench import records

COMMAND = [sys.executable, "-m", "bagua_bench"]
TINY = ["task=quadratic", "transport=gloo", "run.steps=3", "run.warmup=1"]


def bench(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m bagua_bench ARGUMENTS` in a folder."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=200,
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own. It hears SIGINT also where these tests run in the background."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def recorded(folder: Path, campaign: str = "runs") -> list[records.Record]:
    path = folder / "results" / campaign / "records.jsonl"
    return records.read([path]) if path.exists() else []


def workers(of: int) -> list[psutil.Process]:
    """Worker processes below a process, by command line."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if "bagua_bench.training.worker" in process.cmdline() and "launch.agent" not in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def leftovers(folder: Path) -> list[str]:
    """Command lines of agents and workers that were started in `folder` and are alive."""
    found = [p.info for p in psutil.process_iter(["cmdline", "cwd"]) if p.info["cwd"] == str(folder.resolve())]
    lines = [" ".join(info["cmdline"] or []) for info in found]
    return [line for line in lines if "bagua_bench.launch.agent" in line or "bagua_bench.training.worker" in line]
