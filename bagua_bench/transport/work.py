"""Operations that were started, for `torch.distributed` to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from bagua_bench.transport.lane import Lane
from bagua_bench.transport.native import Group, Pending


class Job(Work):
    """A collective operation, run by its lane; its value is the list of tensors it filled."""

    def __init__(self, lane: Lane, run: Callable[[], None], value: Any) -> None:
        super().__init__()
        self._lane, self._run, self._value = lane, run, value
        self._ended = False
        self._running = threading.Lock()  # released at the end; an Event would cost as much as a small operation
        self._running.acquire()
        self._error: BaseException | None = None
        self._end: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def execute(self) -> None:
        """Run it in this thread and wake up whoever waits for it; its future is for `notify`."""
        try:
            self._run()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended = True
        self._running.release()

    def fail(self, error: BaseException) -> None:
        """End it with an error instead of running it."""

        def run() -> None:
            raise error

        self._run = run
        self.execute()
        self.notify()

    def notify(self) -> None:
        """Complete the future, if there is one: its callbacks run in this thread."""
        with self._lock:
            end, self._end = self._end, None
        if end is not None:
            end.set_result(None)

    def _outcome(self, _: object) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has ended; RuntimeError if it failed."""
        seconds = timeout.total_seconds() if timeout is not None else 0
        if not self._ended:
            self._lane.drive(self)
            if not self._running.acquire(timeout=seconds if seconds > 0 else -1):
                raise RuntimeError(f"bagua_net: not finished after {seconds} s")
            self._running.release()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._ended and self._error is None

    def exception(self) -> BaseException | None:
        """How it failed."""
        return self._error

    def result(self) -> Any:
        """The tensors it filled."""
        return self._value

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors. If the operation fails, its value is a RuntimeError, in C++ as in Python.

        (`Future.set_exception` only tells Python: DDP's reducer would take the exception for a list of tensors.)
        """
        self._lane.drive(self)
        with self._lock:
            if self._future is None:
                end: torch.futures.Future[None] = torch.futures.Future()
                self._future = end.then(self._outcome)
                if self._ended:
                    end.set_result(None)
                else:
                    self._end = end
                    self._lane.watch()
            return self._future


class Message(Work):
    """A message between two ranks; `finish` is called once, when it has arrived."""

    def __init__(self, group: Group, started: Pending, timeout: float, finish: Callable[[], None]) -> None:
        super().__init__()
        self._group, self._started, self._timeout = group, started, timeout
        self._finish = finish
        self._lock = threading.Lock()  # one thread at a time asks how it ends
        self._ended = False
        self._error: Exception | None = None
        self._peer: int | None = None

    def __del__(self) -> None:
        if not self._ended:
            self._group.drop(self._started)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has ended; RuntimeError if it failed or took too long."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout
        if not self._poll(seconds):
            raise RuntimeError(f"bagua_net message: timed out after {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def _poll(self, seconds: float) -> bool:
        if not self._ended and self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            try:
                if not self._ended:
                    self._ask(seconds)
            finally:
                self._lock.release()
        return self._ended

    def _ask(self, seconds: float) -> None:
        try:
            self._peer = self._group.wait(self._started, seconds)
            if self._peer is None:
                return
            self._finish()
        except Exception as error:
            self._error = error
        self._ended = True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._poll(0)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._poll(0) and self._error is None

    def exception(self) -> BaseException | None:
        """How it failed."""
        return self._error if self._poll(0) else None

    def _source_rank(self) -> int:
        """The rank that a message has come from, for torch; RuntimeError before it has arrived."""
        if self._peer is None:
            raise RuntimeError("bagua_net message: it has not arrived yet")
        return self._peer


class Together(Work):
    """Several operations and messages, as one."""

    def __init__(self, parts: Sequence[Work]) -> None:
        super().__init__()
        self._parts = parts

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all have ended, or one has failed: its RuntimeError. The time is each one's."""
        return all(part.wait() if timeout is None else part.wait(timeout) for part in self._parts)

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        """How the first that failed did."""
        return next((error for part in self._parts if (error := part.exception()) is not None), None)
