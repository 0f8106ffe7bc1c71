"""The compiled codec kernels, loaded once; `KERNELS` is None where they were not built (no compiler at install)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from torch import Tensor

_FLOAT, _SIZE, _POINTER = ctypes.c_float, ctypes.c_size_t, ctypes.c_void_p


class Native:
    """`kernels.Kernels` on float32 in host memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.minmax_encode.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _POINTER]
        library.minmax_decode.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _POINTER]
        library.minmax_reduce.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _FLOAT, _POINTER]
        library.one_bit_encode.argtypes = [_POINTER, _POINTER, _SIZE, _SIZE, ctypes.c_int, _POINTER]
        library.one_bit_decode.argtypes = [_POINTER, _SIZE, _SIZE, _SIZE, _POINTER]
        library.one_bit_reduce.argtypes = [_POINTER, _SIZE, _SIZE, _SIZE, _FLOAT, _POINTER]
        for name in ("minmax_decode", "minmax_reduce", "one_bit_decode", "one_bit_reduce"):
            getattr(library, name).restype = None
        self._library = library

    def minmax_encode(self, x: Tensor, wire: Tensor, eps: float) -> bool:
        rows, elements = x.shape
        return bool(self._library.minmax_encode(_at(x), rows, elements, eps, wire.stride(0), _at(wire)))

    def minmax_decode(self, wire: Tensor, out: Tensor, eps: float) -> None:
        rows, elements = out.shape
        self._library.minmax_decode(_at(wire), rows, elements, eps, wire.stride(0), _at(out))

    def minmax_reduce(self, wire: Tensor, out: Tensor, eps: float, divisor: int) -> None:
        self._library.minmax_reduce(_at(wire), len(wire), out.numel(), eps, wire.stride(0), divisor, _at(out))

    def one_bit_encode(self, x: Tensor, wire: Tensor, error: Tensor | None, counts: Sequence[int], rms: bool) -> bool:
        elements = x.shape[1]
        memory = None if error is None else _at(error)
        for j, count in enumerate(counts):
            offset = 4 * j * elements
            row = None if memory is None else memory + offset
            if self._library.one_bit_encode(_at(x) + offset, row, elements, count, rms, _at(wire[j])):
                return True
        return False

    def one_bit_decode(self, wire: Tensor, out: Tensor) -> None:
        rows, elements = out.shape
        self._library.one_bit_decode(_at(wire), rows, elements, wire.stride(0), _at(out))

    def one_bit_reduce(self, wire: Tensor, out: Tensor, divisor: int) -> None:
        self._library.one_bit_reduce(_at(wire), len(wire), out.numel(), wire.stride(0), divisor, _at(out))


def _load() -> Native | None:
    folder = Path(__file__).parent
    path = next((p for p in (folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES) if p.exists()), None)
    return None if path is None else Native(ctypes.CDLL(str(path)))


KERNELS = _load()


def _at(x: Tensor) -> int:
    """Address of the first element of x, which must be contiguous."""
    assert x.is_contiguous()
    return x.data_ptr()
