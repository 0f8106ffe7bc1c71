"""MinMaxUInt8 on a GPU: two passes to encode (extremes, codes), one to decode, one to decode and reduce."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from algorithms.codecs.gpu import arithmetic
from algorithms.codecs.gpu.arithmetic import mean, rint, special

_HEADER = tl.constexpr(32)


def minmax_encode(x: Tensor, wire: Tensor, eps: float) -> bool:
    """As `kernels.Kernels`; ValueError if an earlier call refused its tensor."""
    arithmetic.raise_refused(x.device)
    rows, elements = x.shape
    parts, block = arithmetic.parts_of(x), arithmetic.BLOCK
    partials = x.new_empty((rows, 2, parts), dtype=torch.float32)
    flag = arithmetic.refusals(x.device)
    with torch.cuda.device_of(x):
        _extremes[(parts, rows)](x, partials, elements, BLOCK=block, **arithmetic.OPTIONS)
        _quantise[(parts, rows)](
            x, partials, wire, flag, elements, wire.stride(0), eps,
            BLOCK=block, PARTS=triton.next_power_of_2(parts), **arithmetic.OPTIONS,
        )  # fmt: skip
    return False


def minmax_decode(wire: Tensor, out: Tensor, eps: float) -> None:
    rows, elements = out.shape
    grid = (triton.cdiv(elements, arithmetic.BLOCK), rows)
    with torch.cuda.device_of(out):
        _dequantise[grid](wire, out, elements, wire.stride(0), eps, BLOCK=arithmetic.BLOCK, **arithmetic.OPTIONS)


def minmax_reduce(wire: Tensor, out: Tensor, eps: float, divisor: int) -> None:
    rows, elements = len(wire), out.numel()
    grid = (triton.cdiv(elements, arithmetic.BLOCK),)
    with torch.cuda.device_of(out):
        _reduce[grid](
            wire, out, rows, elements, wire.stride(0), eps,
            BLOCK=arithmetic.BLOCK, DIVISOR=divisor, **arithmetic.OPTIONS,
        )  # fmt: skip


@triton.jit
def _grid(low, high, eps):
    """Scale and upper level of a row."""
    scale = tl.div_rn(255.0, (high - low) + eps)
    return scale, rint(high * scale)


@triton.jit
def _extremes(x, partials, elements, BLOCK: tl.constexpr):
    """Minimum and maximum of a part of a row; of a part with NaN or Inf: minus and plus infinity."""
    part, row, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    x += row.to(tl.int64) * elements
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(part * BLOCK, elements, parts * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < elements
        value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
        bad |= special(value).to(tl.int32)
        low = tl.minimum(low, tl.where(inside, value, float("inf")))
        high = tl.maximum(high, tl.where(inside, value, float("-inf")))
    is_bad = tl.max(bad, 0) > 0
    partials += row * 2 * parts + part
    tl.store(partials, tl.where(is_bad, float("-inf"), tl.min(low, 0)))
    tl.store(partials + parts, tl.where(is_bad, float("inf"), tl.max(high, 0)))


@triton.jit
def _quantise(
    x, partials, wire, refused, elements, stride, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Codes of a part of a row, last block first: it was read last and may still be in the cache."""
    part, row, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    each = tl.arange(0, PARTS)
    partials += row * 2 * parts
    low = tl.min(tl.load(partials + each, mask=each < parts, other=float("inf")), 0)
    high = tl.max(tl.load(partials + parts + each, mask=each < parts, other=float("-inf")), 0)
    scale, upper = _grid(low, high, eps)
    lower = upper - 255.0
    refuse = special(high - low) | special(low * scale) | special(upper)
    x += row.to(tl.int64) * elements
    wire += row.to(tl.int64) * stride
    if part == 0:
        header = wire.to(tl.pointer_type(x.dtype.element_ty), bitcast=True)
        tl.store(header, tl.where(refuse, float("nan"), low).to(x.dtype.element_ty))
        tl.store(header + 1, tl.where(refuse, float("nan"), high).to(x.dtype.element_ty))
        tl.store(refused, 1, mask=refuse)
    blocks = tl.cdiv(elements - part * BLOCK, parts * BLOCK)
    written = tl.where(refuse, 0, elements)  # Triton 3.9 interprets no mask of a block with scalars compared in it
    for back in range(blocks):
        at = (part + (blocks - 1 - back) * parts) * BLOCK + tl.arange(0, BLOCK)
        inside = at < written
        value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
        level = tl.minimum(rint(value * scale), upper)
        code = tl.minimum(tl.maximum(level - lower, 0.0), 255.0)
        tl.store(wire + _HEADER + at, code.to(tl.int32).to(tl.uint8), mask=inside)


@triton.jit
def _levels(wire, eps, dtype):
    """What each of the 256 codes stands for in the row at `wire`, float32."""
    header = wire.to(tl.pointer_type(dtype), bitcast=True)
    scale, upper = _grid(tl.load(header).to(tl.float32), tl.load(header + 1).to(tl.float32), eps)
    code = tl.arange(0, 256).to(tl.float32)
    return tl.div_rn(code + (upper - 255.0), tl.zeros_like(code) + scale)


@triton.jit
def _decoded(wire, at, inside, eps, dtype):
    """Elements `at` of the row at `wire`, float32, from a table: one division for each code, not for each element."""
    code = tl.load(wire + _HEADER + at, mask=inside, other=0).to(tl.int32)
    return tl.gather(_levels(wire, eps, dtype), code, 0)


@triton.jit
def _dequantise(wire, out, elements, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    value = _decoded(wire + row * stride, at, inside, eps, out.dtype.element_ty)
    tl.store(out + row * elements + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _reduce(wire, out, rows, elements, stride, eps, BLOCK: tl.constexpr, DIVISOR: tl.constexpr):
    """The rows are added in their order, in registers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    total = _decoded(wire, at, inside, eps, out.dtype.element_ty)
    for _ in range(1, rows):
        wire += stride
        total += _decoded(wire, at, inside, eps, out.dtype.element_ty)
    tl.store(out + at, mean(total, DIVISOR).to(out.dtype.element_ty), mask=inside)
