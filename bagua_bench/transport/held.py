"""What C++ has made and some threads use, while others may close it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakSet


class Held:
    """A pointer; `with held as pointer:` while it is used. It is gone when it was closed and nobody uses it any more.

    RuntimeError for whoever begins to use it after it was closed, or in a child process: what is behind it is the
    parent's, and so are the threads that serve it.
    """

    def __init__(self, name: str, pointer: Any, end: Callable[[Any], None]) -> None:
        self._name, self._pointer, self._end = name, pointer, end
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def leave(self) -> None:
        """In a child process: forget it, and whoever used it in the parent."""
        self._pointer = None
        self._begin()

    def __enter__(self) -> Any:
        with self._lock:
            if self._closed or not self._pointer:
                raise RuntimeError(f"{self._name} has been closed")
            self._users += 1
            return self._pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            last = self._unused()
        if last:
            self._end(last)

    def tell(self, call: Callable[[Any], None]) -> None:
        """Call it with the pointer, if that is not gone: also after it was closed, while others are to end."""
        with self._lock:
            if not (pointer := self._pointer):
                return
            self._users += 1
        try:
            call(pointer)
        finally:
            self.__exit__(None, None, None)

    def close(self) -> None:
        """Nobody may begin to use it from now on; from any thread."""
        with self._lock:
            self._closed = True
            last = self._unused()
        if last:
            self._end(last)

    def _unused(self) -> Any:
        """The pointer, once, if it is to go; the caller holds the lock."""
        if not self._closed or self._users:
            return None
        pointer, self._pointer = self._pointer, None
        return pointer


_all: WeakSet[Held] = WeakSet()


def _leave_all() -> None:
    for held in _all:
        held.leave()


os.register_at_fork(after_in_child=_leave_all)
