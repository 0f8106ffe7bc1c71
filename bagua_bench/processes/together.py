"""Starts the processes of one part of a check side by side, ends them together, and reports what they printed.

Meanwhile no other timed run of this user begins.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals

from bagua_bench.processes.alone import alone

_HOME = Path(__file__).resolve().parents[2]
_GRACE = 2.0  # seconds in which the others may fail after the first; over NCCL they would wait for it
_KEPT = 60  # last lines of every log
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)  # watchdogs print more after it
_ALONE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


class PartFailed(Exception):
    """Why a part failed, in one line.

    logs: the last lines of each of its processes. late: whether it did not end in time, rather than break.
    """

    def __init__(self, reason: str, logs: list[str], late: bool = False) -> None:
        super().__init__(reason)
        self.logs, self.late = logs, late


def run(
    arguments: Sequence[Sequence[str]], folder: Path, limit: float, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Run `python ARGUMENTS` for each, all at once and on one GPU; returns what each printed.

    PartFailed if one fails, or if `limit` seconds pass. No process is left running; the logs stay in `folder`.
    """
    with alone(lambda text: print(text, file=sys.stderr, flush=True)):
        return _run(arguments, folder, limit, variables or {})


def _run(arguments: Sequence[Sequence[str]], folder: Path, limit: float, variables: Mapping[str, str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"{number}.log" for number in range(len(arguments))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += (_start(one, log, variables) for one, log in zip(arguments, logs, strict=True))
        first = _first_failure(processes, limit)
        late = any(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = [log.read_text(errors="replace") for log in logs]
    if first is None and not late:
        return texts
    ends = ["\n".join(text.splitlines()[-_KEPT:]) for text in texts]
    if first is None:
        raise PartFailed(f"not done after {limit:.0f} s", ends, late=True)
    raise PartFailed(_reason(texts[first], processes[first].returncode), ends)


def _start(arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": gpu, **_ALONE, **variables}
    with log.open("w") as stream:
        return subprocess.Popen([sys.executable, *arguments], env=own, stdout=stream, stderr=subprocess.STDOUT)


def _first_failure(processes: Sequence[subprocess.Popen[bytes]], limit: float) -> int | None:
    """Index of the process that failed first; None if all ended or `limit` seconds passed without a failure."""
    end, first = time.monotonic() + limit, None
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        failed = [k for k, process in enumerate(processes) if process.poll()]
        if failed and first is None:
            first, end = failed[0], min(end, time.monotonic() + _GRACE)
        time.sleep(0.05)
    return next((k for k, process in enumerate(processes) if process.poll()), None) if first is None else first


def _reason(log: str, code: int) -> str:
    errors = _ERROR.findall(log) or log.strip().splitlines()
    ending = f"ended by {Signals(-code).name}" if code < 0 else f"exit code {code}"
    return errors[-1] if errors else ending
