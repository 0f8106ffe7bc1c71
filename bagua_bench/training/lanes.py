"""Where communication runs beside computation: one first-in-first-out lane per model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

_PATIENCE = 1.0  # seconds


class Lane(Protocol):
    """Runs work in the order of submission, one piece at a time."""

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work; returns at once. Its inputs are complete at this point of the caller's timeline."""

    def wait(self) -> None:
        """Return when all submitted work is done; raise what the first failing piece raised."""

    def close(self) -> None:
        """End the lane; work still queued is dropped."""


class ThreadLane:
    """A daemon thread. After a failure the work behind it is dropped: collectives would not match any more."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Condition()
        self._pending = 0
        self._error: BaseException | None = None
        self._closed = False
        self.thread = threading.Thread(target=self._loop, name="communication", daemon=True)
        self.thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the lane is closed")
        with self._idle:
            self._pending += 1
        self._queue.put(work)

    def wait(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0 or self._error is not None)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)
        self.thread.join(_PATIENCE)  # a thread stuck in a collective is left to the group's time-out

    def _loop(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                if self._error is None and not self._closed:
                    work()
            except BaseException as error:
                self._error = error
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()
