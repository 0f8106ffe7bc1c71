"""Ties the life of a process to that of its parent."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `by` to this process when its parent ends, however that ends (Linux)."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request
        os.kill(os.getpid(), by)
