"""Shared by the Triton kernels: the float operations of kernels.cpp, and how kernels are launched and refuse.

Float operations are part of the format: no fused multiply-add, IEEE division, rint rounds ties to even.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Elements that a program handles at a time; a power of two."""
PROGRAMS = 512
"""Programs that go over a tensor which has to be read twice: about as many as run at a time, 4 on each of an H200's 132
multiprocessors, as each of them reads what all of them found."""
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}

_REFUSED = "a codec refused a tensor encoded before: it holds NaN or Inf, or its levels overflow float32"


@triton.jit
def rint(x):
    """Nearest integer, ties to even: adding 2^23 leaves a float32 no bits behind the point."""
    size = tl.abs(x)
    rounded = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def special(x):
    """Whether float32 x is NaN or Inf: all ones in the exponent."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000


@triton.jit
def mean(total, DIVISOR: tl.constexpr):
    """total / DIVISOR, rounded once. A power of two has an exact reciprocal, and multiplying takes less time."""
    if DIVISOR & (DIVISOR - 1) == 0:
        quotient = total * (1.0 / DIVISOR)
    else:
        quotient = tl.div_rn(total, tl.zeros_like(total) + DIVISOR)
    return quotient


def parts_of(x: Tensor) -> int:
    """Programs for each row of x (rows, elements)."""
    rows, elements = x.shape
    assert elements <= 2**30, "offsets inside a row are 32 bits"
    return max(1, min(-(-elements // BLOCK), PROGRAMS // rows))


@cache
def refusals(device: torch.device) -> Tensor:
    """One flag per device, int32 (1,), in host memory that kernels write directly: to read it is not to wait."""
    return torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")


def raise_refused(device: torch.device) -> None:
    """ValueError, once, if a kernel that has run on `device` refused its tensor."""
    flag = refusals(device)
    if flag.item():
        flag.zero_()
        raise ValueError(_REFUSED)
