"""Runs the collective operations of a group one after the other, and the callbacks of their futures between them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

_LOOKS = 0.25  # seconds between two looks for a callback that holds everything up, at most


class Operation(Protocol):
    """What a lane runs."""

    def execute(self) -> None:
        """Run it."""

    def notify(self) -> None:
        """Run the callbacks of its future."""

    def fail(self, error: BaseException) -> None:
        """End it with an error instead of running it."""

    def is_completed(self) -> bool:
        """Whether it has ended."""


class Lane:
    """Runs operations in the order in which they were started, which must be the same on all ranks.

    An operation runs in its caller's thread if that would wait anyway, otherwise in the lane's own, which starts with
    the first operation that needs it.

    Callbacks run in the lane's thread, between their operation and the next one. An operation that one of them starts
    runs at once, in its place: it comes before those that wait in the queue, whenever these were started. So ranks that
    are not equally quick still agree on the order, provided that a callback which starts operations is added before the
    next operation is started: one that is added after its operation has ended runs at once, in its caller's thread. A
    callback that waits for an operation in the queue runs the queue up to there. If a callback neither ends nor runs
    anything for `patience` seconds, the group is aborted and all that wait behind it fail.
    """

    def __init__(self, close: Callable[[], None], abort: Callable[[], None], patience: float) -> None:
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._busy = threading.Lock()  # held while an operation runs
        self._count = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._depth = 0  # callbacks that the lane's thread is in
        self._quiet_since: float | None = None  # a callback runs, and no operation within it
        self._over = threading.Event()
        self._process = os.getpid()
        self._close, self._abort = close, abort
        self.patience = patience

    def run(self, operation: Operation, asynchronous: bool) -> None:
        """Start it; on return it has ended unless it is `asynchronous` or others go first."""
        self._check_process()
        if self._over.is_set():
            raise RuntimeError("bagua_net: the group has been shut down")
        with self._count:
            inline = self._is_own_thread() or (not asynchronous and self._waiting == 0)
            self._waiting += 1
            if not inline:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="bagua_net", daemon=True)
                    self._thread.start()
                self._queue.put(operation)
        if inline:
            self._execute(operation)

    def drive(self, operation: Operation) -> None:
        """In a callback: run what waits in the queue until this operation has ended. Elsewhere: nothing."""
        self._check_process()
        while self._is_own_thread() and not operation.is_completed():
            following = self._queue.get()
            if following is None:  # the end comes after all that were started
                self._queue.put(None)
                return
            self._execute(following)

    def watch(self) -> None:
        """See to it that no callback holds up others for ever; from the first future on."""
        with self._count:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="bagua_net callbacks", daemon=True)
                self._watcher.start()

    def end(self) -> None:
        """Close once all earlier operations have ended; in a child process, nothing: the lane is its parent's."""
        if os.getpid() != self._process:
            return
        self._over.set()
        with self._count:
            if self._thread is not None:
                self._queue.put(None)
                return
        self._close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("bagua_net: the group is of the parent process")

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _execute(self, operation: Operation) -> None:
        own = self._is_own_thread()
        if own:
            self._quiet_since = None
        with self._busy:
            operation.execute()
        if own:
            self._call_back(operation)
        with self._count:
            self._waiting -= 1

    def _call_back(self, operation: Operation) -> None:
        self._depth += 1
        self._quiet_since = time.monotonic()
        operation.notify()
        self._depth -= 1
        self._quiet_since = time.monotonic() if self._depth else None

    def _serve(self) -> None:
        while (operation := self._queue.get()) is not None:
            self._execute(operation)
        self._close()

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS):
            since, limit = self._quiet_since, self.patience
            if since is not None and time.monotonic() - since > limit:
                self._fail_waiting(
                    RuntimeError(f"bagua_net: timed out: a callback of an operation before it took over {limit:g} s")
                )

    def _fail_waiting(self, error: RuntimeError) -> None:
        with self._count:
            failed: list[Operation] = []
            with suppress(Empty):
                while (operation := self._queue.get_nowait()) is not None:
                    failed.append(operation)
                self._queue.put(None)
            self._waiting -= len(failed)
        if failed:
            self._abort()  # the other ranks may run what fails here
        for operation in failed:
            operation.fail(error)
