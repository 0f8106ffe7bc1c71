"""Lets processes begin together that take unequally long to start.

There are two gates: one for processes that start, and one for those that find themselves fewer than were asked for.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_POLL = 0.02  # seconds


def pass_through(folder: Path) -> None:
    """Say that this process is ready, and wait until the gate is open."""
    (folder / f"ready-{os.getpid()}").touch()
    while not (folder / "open").exists():
        time.sleep(_POLL)


def ready(folder: Path) -> int:
    """How many processes have come."""
    return len(list(folder.glob("ready-*")))


def open_up(folder: Path) -> None:
    """Let all through that have come or will come."""
    (folder / "open").touch()


def pass_as_few(folder: Path) -> None:
    """Wait until fewer processes than were asked for may begin."""
    while not (folder / "few").exists():
        time.sleep(_POLL)


def open_to_few(folder: Path) -> None:
    """Let those begin that are fewer than were asked for, now or later."""
    (folder / "few").touch()
