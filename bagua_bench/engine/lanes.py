"""Lanes run communication beside computation, first in, first out; a model has one per channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from bagua_bench.comm import CountedComm

_PATIENCE = 1.0  # seconds


class Lane(Protocol):
    """Runs work in the order of submission, one piece at a time."""

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work; returns at once. Its inputs are complete at this point of the caller's timeline."""

    def mark(self) -> Any:
        """Return a mark behind all the work submitted so far."""

    def wait(self, mark: Any = None) -> None:
        """Return when the work before `mark` (None: all) is done; raise the error of the first piece that failed."""

    def close(self) -> None:
        """End the lane; work still queued is dropped."""


class ThreadLane:
    """A daemon thread. After a failure the work behind it is dropped: collectives would not match any more."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Condition()
        self._submitted = self._done = 0
        self._error: BaseException | None = None
        self._closed = False
        self.thread = threading.Thread(target=self._loop, name="communication", daemon=True)
        self.thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the lane is closed")
        with self._idle:
            self._submitted += 1
        self._queue.put(work)

    def mark(self) -> int:
        return self._submitted

    def wait(self, mark: int | None = None) -> None:
        behind = self._submitted if mark is None else mark
        with self._idle:
            self._idle.wait_for(lambda: self._done >= behind or self._error is not None)
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
            del work  # the buckets that it holds may be given up before the next piece comes
            with self._idle:
                self._done += 1
                self._idle.notify_all()


class Channels:
    """Lanes side by side, each with a communicator of its own: the latency of one hides behind bytes of another.

    Work with the same key goes through the same channel. All ranks submit the same work in the same order, and so
    every channel sees the same order on all of them.
    """

    def __init__(self, lanes: Sequence[Lane], comms: Sequence[CountedComm]) -> None:
        self._lanes, self._comms = lanes, comms
        self.number = len(comms)

    def submit(self, key: int, work: Callable[[CountedComm], None]) -> None:
        """Queue work for the channel of `key`; returns at once."""
        channel = key % len(self._lanes)
        self._lanes[channel].submit(partial(work, self._comms[channel]))

    def mark(self) -> Any:
        """Return a mark behind all the work submitted so far."""
        return [lane.mark() for lane in self._lanes]

    def wait(self, mark: Any = None) -> None:
        """Return when the work before `mark` (None: all) is done; raise the error of the first piece that failed."""
        for lane, own in zip(self._lanes, mark or [None] * len(self._lanes), strict=True):
            lane.wait(own)

    def run(self, work: Callable[[CountedComm], None]) -> None:
        """Do something collective behind all the work submitted so far, and wait for it."""
        for lane in self._lanes[1:]:
            lane.wait()
        self.submit(0, work)
        self._lanes[0].wait()

    def close(self) -> None:
        """End all lanes; work still queued is dropped."""
        for lane in self._lanes:
            lane.close()
