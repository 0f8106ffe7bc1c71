"""Sleeps for as long as another machine would compute."""

from __future__ import annotations

import ctypes
import time

_PR_SET_TIMERSLACK = 29


class Sleeper:
    """A pace that sleeps to absolute deadlines: what one layer oversleeps, the next one sleeps less.

    `seconds`: durations of the passes "forward" and "backward".
    """

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._load = seconds, 1.0
        self._deadline = time.perf_counter()
        sharpen()

    def begin(self, phase: str) -> None:
        self._deadline = time.perf_counter()

    def work(self, phase: str, share: float) -> None:
        self.pass_time(share * self._seconds[phase] * self._load)

    def carry(self, load: float) -> None:
        self._load = load

    def spend(self, seconds: float) -> None:
        """Sleep for `seconds` from now, outside a pass."""
        self._deadline = time.perf_counter()
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Sleep until `seconds` after the last deadline."""
        self._deadline += seconds
        left = self._deadline - time.perf_counter()
        if left > 0:
            time.sleep(left)


def sharpen() -> None:
    """Make the kernel end this thread's sleeps within a microsecond instead of 50 (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
