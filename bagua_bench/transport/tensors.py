"""Tensors and operations in the form that the transport takes: contiguous memory and numbers for types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bagua_bench.transport.native import NAME

DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.uint8: 6,
    torch.int8: 7,
    torch.bool: 8,
}
_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")  # in the order of reduce.h
_AVG, _FIRST_BITS, _FLOATS = 1, 5, 4
_MOST_KEPT = 2**28  # bytes
_OF_PAIRS = ("SUM", "AVG")  # what is done to complex numbers as to their parts


def checked(x: Tensor) -> Tensor:
    """The same tensor; ValueError if the transport cannot move what it is of."""
    if x.device.type != "cpu":
        raise ValueError(f"{NAME} moves CPU tensors, not {x.device}; use nccl with transport=nccl_bagua_net")
    if x.layout != torch.strided:
        raise ValueError(f"{NAME} moves dense tensors, not {x.layout}; use gloo")
    return x


def check_rows(rows: Sequence[Tensor], x: Tensor, ranks: int) -> None:
    """ValueError unless each of these ranks has a row for what this tensor is on its own."""
    checked(x)
    if len(rows) != ranks:
        raise ValueError(f"{NAME}: {len(rows)} tensors to gather in: allowed: {ranks}, one per rank")
    for row in rows:
        found, allowed = (f"{one.numel()} elements of {one.dtype}" for one in (row, x))
        if found != allowed:
            raise ValueError(f"{NAME}: {found} to gather in: allowed: {allowed}, as those of the ranks")


def overwrite(target: Tensor, source: Tensor) -> None:
    """Copy: autograd has no part in it, whichever mode this thread is in, and either may be of inference."""
    with torch.inference_mode():
        target.copy_(source)


class Dense:
    """Contiguous memory for a tensor: the tensor's own, or a copy that is stored back."""

    def __init__(self, x: Tensor, load: bool = True) -> None:
        self._x = checked(x)
        if x.is_contiguous() and not x.is_conj() and not x.is_neg():
            self.data = x
        else:
            self.data = torch.empty(x.shape, dtype=x.dtype, device="cpu")
            if load:
                overwrite(self.data, x)

    def store(self) -> None:
        """Copy the result back into the tensor, if it was copied out."""
        if self.data is not self._x:
            overwrite(self._x, self.data)

    def __enter__(self) -> Tensor:
        return self.data

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.store()


class Room:
    """Memory that is kept from call to call, because fresh pages cost as much as sending them."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def of(self, size: int) -> Tensor:
        """So many bytes; valid until the next call."""
        if size > _MOST_KEPT:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        if self._kept is None or self._kept.nbytes < size:
            self._kept = None  # before there is another one
            with torch.inference_mode(False):  # it outlives the caller's mode
                self._kept = torch.empty(size, dtype=torch.uint8, device="cpu")
        return self._kept[:size]


def shares_memory(x: Tensor, others: Iterable[Tensor]) -> bool:
    """Whether it is of the same storage as one of them."""
    own = x.untyped_storage().data_ptr()
    return any(other.untyped_storage().data_ptr() == own for other in others)


def as_real(x: Tensor) -> Tensor:
    """The tensor, if it is complex as the pairs of its parts; both share their memory."""
    return torch.view_as_real(x) if x.is_complex() else x


def numbers_of(x: Tensor, opts: Any) -> tuple[int, int]:
    """Of what `opts` asks for, as `numbers`."""
    return numbers(x, "SUM" if opts is None else opts.reduceOp.op.name)


def numbers(x: Tensor, name: str) -> tuple[int, int]:
    """The numbers of the type of `as_real`, and of the operation; ValueError if these cannot be reduced."""
    dtype = DTYPES.get(x.dtype.to_real() if x.is_complex() else x.dtype)
    op = _OPS.index(name) if name in _OPS else None
    pairs = not x.is_complex() or name in _OF_PAIRS
    fits = pairs and dtype is not None and op is not None and (op != _AVG or dtype < _FLOATS)
    if not fits or (op is not None and op >= _FIRST_BITS and dtype is not None and dtype < _FLOATS):
        raise ValueError(f"{NAME} cannot reduce {x.dtype} with {name}")
    assert dtype is not None and op is not None
    return dtype, op
