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
        self._users: list[None] = []  # a place for each: adding and removing one needs no lock, which would cost more
        self._lock = threading.Lock()

    def leave(self) -> None:
        """In a child process: forget it, and whoever used it in the parent."""
        self._pointer = None
        self._begin()

    def __enter__(self) -> Any:
        self._users.append(None)  # before it looks: whoever closes looks for users after that
        if self._closed or not self._pointer:
            self.__exit__(None, None, None)
            raise RuntimeError(f"{self._name} has been closed")
        return self._pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users.pop()
        if self._closed:
            self._end_unused()

    def tell(self, call: Callable[[Any], None]) -> None:
        """Call it with the pointer, if that is not gone: also after it was closed, while others are to end."""
        with self._lock:
            self._users.append(None)
            pointer = self._pointer
        try:
            if pointer:
                call(pointer)
        finally:
            self.__exit__(None, None, None)

    def close(self) -> None:
        """Nobody may begin to use it from now on; from any thread."""
        self._closed = True
        self._end_unused()

    def _end_unused(self) -> None:
        with self._lock:  # once
            if self._users:
                return
            pointer, self._pointer = self._pointer, None
        if pointer:
            self._end(pointer)


_all: WeakSet[Held] = WeakSet()


def _leave_all() -> None:
    for held in _all:
        held.leave()


os.register_at_fork(after_in_child=_leave_all)
