"""The compiled codec kernels, loaded once; `KERNELS` is None where they were not built (no compiler at install)."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from torch import Tensor

_FLOAT, _SIZE, _POINTER = ctypes.c_float, ctypes.c_size_t, ctypes.c_void_p


def _load() -> ctypes.CDLL | None:
    folder = Path(__file__).parent
    path = next((p for p in (folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES) if p.exists()), None)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.minmax_encode.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _POINTER]
    library.minmax_decode.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _POINTER]
    library.minmax_reduce.argtypes = [_POINTER, _SIZE, _SIZE, _FLOAT, _SIZE, _FLOAT, _POINTER]
    library.one_bit_encode.argtypes = [_POINTER, _POINTER, _SIZE, _SIZE, ctypes.c_int, _POINTER]
    library.one_bit_decode.argtypes = [_POINTER, _SIZE, _SIZE, _SIZE, _POINTER]
    library.one_bit_reduce.argtypes = [_POINTER, _SIZE, _SIZE, _SIZE, _FLOAT, _POINTER]
    for name in ("minmax_decode", "minmax_reduce", "one_bit_decode", "one_bit_reduce"):
        getattr(library, name).restype = None
    return library


KERNELS = _load()


def pointer(x: Tensor) -> int:
    """Address of the first element of x, which must be contiguous."""
    assert x.is_contiguous()
    return x.data_ptr()
