"""Finds out which rank failed first, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bagua_bench.processes import mailbox


class RunFailed(Exception):
    """A run ended without a result; `reason` is one line, `log` what its processes printed."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.reason, self.log = reason, log


def first_failure(folder: Path, ranks_per_agent: int, since: float = 0.0) -> str:
    """One line on the root cause, from what the torchrun agents left in the run's folder.

    A rank that was killed, or failed on its own, comes before ranks that lost a peer. Otherwise the earliest counts.
    since: seconds of the epoch before which failures do not count.
    """
    causes = [cause for cause in (*_killed(folder), *_raised(folder, ranks_per_agent)) if cause[1] >= since]
    if not causes:
        return "the workers ended without a result"
    return min(causes)[2]


def _killed(folder: Path) -> list[tuple[int, float, str]]:
    files = [mailbox.wait(path) for path in sorted(folder.glob("failures-*.json"))]
    failures: list[dict[str, Any]] = [failure for file in files for failure in file]
    return [
        (
            0 if failure["signal"] != "SIGTERM" else 2,
            failure["time"],
            f"rank {failure['rank']}: killed by {failure['signal']}",
        )
        for failure in failures
        if failure["exitcode"] < 0
    ]


def _raised(folder: Path, ranks_per_agent: int) -> list[tuple[int, float, str]]:
    causes = []
    for path in folder.glob("logs/**/error.json"):
        try:
            message = json.loads(path.read_text())["message"]
        except ValueError:  # another rank, which failed later, is writing it
            continue
        text, extra = (message["message"], message["extraInfo"]) if isinstance(message, dict) else (message, {})
        text = text.strip().partition("\n")[0]  # the rest is in the log
        lost_peer = text.startswith("CommError")
        server = int(path.relative_to(folder).parts[1])
        rank = server * ranks_per_agent + int(path.parent.name)
        causes.append((int(lost_peer), float(extra.get("timestamp", 0)), f"rank {rank}: {text}"))
    return causes
