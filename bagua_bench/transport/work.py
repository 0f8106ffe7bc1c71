"""Operations that were started, for `torch.distributed` to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from bagua_bench.transport.native import Group


class Job(Work):
    """A collective operation, run by its lane; its value is the list of tensors it filled."""

    def __init__(self, run: Callable[[], None], value: Any) -> None:
        super().__init__()
        self._run, self._value = run, value
        self._ended = False
        self._running = threading.Lock()  # released at the end; an Event would cost as much as a small operation
        self._running.acquire()
        self._error: BaseException | None = None
        self._end: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def execute(self) -> None:
        """Run it in this thread and notify whoever waits."""
        try:
            self._run()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended = True
            end = self._end
        self._running.release()
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
        with self._lock:
            if self._future is None:
                self._end = torch.futures.Future()
                self._future = self._end.then(self._outcome)
                if self._ended:
                    self._end.set_result(None)
            return self._future


class Message(Work):
    """A message between two ranks; `finish` is called once, when it has arrived."""

    def __init__(self, group: Group, number: int, timeout: float, source: int, finish: Callable[[], None]) -> None:
        super().__init__()
        self._group, self._number, self._timeout, self._source = group, number, timeout, source
        self._finish = finish
        self._ended = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has ended; RuntimeError if it failed or took too long."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout
        if not self._poll(seconds):
            raise RuntimeError(f"bagua_net message: timed out after {seconds} s")
        return True

    def _poll(self, seconds: float) -> bool:
        if not self._ended and self._group.wait(self._number, seconds):
            self._ended = True
            self._finish()
        return self._ended

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._poll(0)

    def source_rank(self) -> int:
        """The rank that a received message came from."""
        return self._source


class Lane:
    """Runs collective operations one after the other.

    An operation runs in its caller's thread if that would wait anyway, otherwise in the lane's own, which starts with
    the first operation that needs it.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._busy = threading.Lock()  # held while an operation runs
        self._count = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._close = close

    def run(self, job: Job, asynchronous: bool) -> Job:
        """Start it; on return it has ended unless it is `asynchronous` or others go first."""
        with self._count:
            inline = not asynchronous and self._waiting == 0
            self._waiting += 1
            if not inline:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="bagua_net", daemon=True)
                    self._thread.start()
                self._queue.put(job)
        if inline:
            self._execute(job)
        return job

    def _execute(self, job: Job) -> None:
        with self._busy:
            job.execute()
        with self._count:
            self._waiting -= 1

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            self._execute(job)
        self._close()

    def end(self) -> None:
        """Close once all earlier operations have ended."""
        with self._count:
            if self._thread is not None:
                self._queue.put(None)
                return
        self._close()
