"""Keeps timed runs of one user apart, so that none slows down another. No torch import."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

TOGETHER = "BAGUA_BENCH_TOGETHER"
"""Variable of the environment with which runs do not wait for each other."""


@contextmanager
def alone(waits: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process of this user times a run; `waits` is told once if there is one, and of which.

    A file in the user's cache folder is locked. Where none can be made, nobody waits.
    """
    if os.environ.get(TOGETHER):
        yield
        return
    path = Path(user_cache_dir("bagua-bench")) / "timed.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+")
    except OSError:
        yield
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(f"waiting for the timed run of process {path.read_text().strip()} ({TOGETHER}=1 does not)")
            fcntl.flock(stream, fcntl.LOCK_EX)
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
