"""Which kernels run a codec on a tensor: compiled C++ on the CPU, Triton on a GPU, or none (then plain torch does)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from algorithms.codecs import native


class Kernels(Protocol):
    """Rows of floats to rows of bytes and back. Tensors are contiguous but for the rows of `wire`.

    The functions that encode return whether they refuse x (NaN, Inf, overflow); on a GPU, where that is not known yet,
    they return False, the wire decodes to NaN, and a later call raises ValueError.
    """

    def minmax_encode(self, x: Tensor, wire: Tensor, eps: float) -> bool:
        """x (rows, elements) into wire (rows, bytes)."""

    def minmax_decode(self, wire: Tensor, out: Tensor, eps: float) -> None:
        """wire (rows, bytes) into out (rows, elements)."""

    def minmax_reduce(self, wire: Tensor, out: Tensor, eps: float, divisor: int) -> None:
        """The sum of the decoded rows, in their order, over `divisor`, into out (elements,)."""

    def one_bit_encode(self, x: Tensor, wire: Tensor, error: Tensor | None, counts: Sequence[int], rms: bool) -> bool:
        """x + error (rows, elements) into wire, the loss into error; `counts` elements of each row are no padding."""

    def one_bit_decode(self, wire: Tensor, out: Tensor) -> None:
        """wire (rows, bytes) into out (rows, elements)."""

    def one_bit_reduce(self, wire: Tensor, out: Tensor, divisor: int) -> None:
        """As `minmax_reduce`."""


def kernels_for(x: Tensor) -> Kernels | None:
    """The kernels for tensors like x; None: there are none for its device, dtype or layout."""
    if not x.is_contiguous():
        return None
    if x.is_cuda:
        return _triton() if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else None
    return native.KERNELS if x.device.type == "cpu" and x.dtype == torch.float32 else None


@cache
def _triton() -> Kernels | None:
    """Imported at the first tensor on a GPU: Triton comes with CUDA builds of torch, and only with them."""
    if find_spec("triton") is None:
        return None
    from algorithms.codecs import gpu

    return cast(Kernels, gpu)
