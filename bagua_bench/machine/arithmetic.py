"""Arithmetic on tensors at the speed of another machine, limited by its memory bandwidth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_LARGE = 65_536  # bytes; a smaller tensor may control what the program does
_NAP = 2e-4  # seconds
_MOVES_NOTHING = ("empty", "new_empty", "detach")
_OVERWRITES = ("copy_", "zero_", "fill_")


@cache
def settle() -> None:
    """Look all operations up that a meter may see; before several threads use meters.

    torch looks an operation up when a dispatch mode first sees it. If two threads do so at once, torch keeps an object
    that Python frees, and a later call crashes (seen with torch 2.13). What was looked up before is never freed.
    """
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, operation = full.partition("::")
        if namespace in ("aten", "c10d"):
            name, _, overload = operation.partition(".")
            getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


class Meter(TorchDispatchMode):
    """Calls `charge(bytes)` after every operation, with its memory traffic: every tensor is read or written once.

    values: whether values matter. If not, operations that overwrite a large floating-point tensor, or one on meta, are
    skipped; all others are done, since their results may be needed.
    """

    def __init__(self, charge: Callable[[float], None], values: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._charge, self._values = charge, values

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        into = None if self._values else _overwritten(func, args, kwargs or {})
        result = func(*args, **(kwargs or {})) if into is None else into
        if func.namespace == "aten" and not func.is_view and not name.startswith(_MOVES_NOTHING):
            self._charge(_traffic(name, args, result))
        return result


class Debt(threading.local):
    """A charge that sleeps for bytes at `bandwidth`, bytes/s, on the thread that does the operations.

    It sleeps only once enough time is owed, because each sleep has overhead.
    """

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._owed = 0.0

    def __call__(self, nbytes: float) -> None:
        self._owed += nbytes / self._bandwidth
        if self._owed > _NAP:
            begin = time.perf_counter()
            time.sleep(self._owed)
            self._owed = min(0.0, self._owed - (time.perf_counter() - begin))


def _overwritten(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The tensor whose values an operation overwrites, if they control nothing; it is then the result."""
    into = args[0] if _is_in_place(func) else kwargs.get("out")
    if not isinstance(into, Tensor) or not into.numel():  # an empty one is made as large as its result
        return None
    return into if into.is_meta or (into.is_floating_point() and into.nbytes >= _LARGE) else None


@cache
def _is_in_place(func: Any) -> bool:
    """Whether it changes its first argument's values, and neither its shape nor its place."""
    first = next(iter(func._schema.arguments), None)
    writes = first is not None and first.alias_info is not None and first.alias_info.is_write
    return writes and func.overloadpacket.__name__.endswith("_") and torch.Tag.inplace_view not in func.tags


def _traffic(name: str, args: Any, result: Any) -> float:
    given = [x for x in args if isinstance(x, Tensor)]
    made = [x for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]
    read = given[1:] if name in _OVERWRITES else given
    return float(sum(x.nbytes for x in read) + sum(x.nbytes for x in made))
