"""The 1-bit codec on a GPU: two passes to encode with error feedback (sizes, signs), one to decode, one to reduce.

Sizes are summed in double like on the CPU, in another order: scales are equal but where the exact mean lies within
about 1e-16 of the middle between two float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from algorithms.codecs.gpu import arithmetic
from algorithms.codecs.gpu.arithmetic import mean, special


def one_bit_encode(x: Tensor, wire: Tensor, error: Tensor | None, counts: Sequence[int], rms: bool) -> bool:
    """As `kernels.Kernels`; ValueError if an earlier call refused its tensor, whose memory is then unchanged."""
    arithmetic.raise_refused(x.device)
    rows, elements = x.shape
    parts, block = arithmetic.parts_of(x), arithmetic.BLOCK
    partials = x.new_empty((rows, parts), dtype=torch.float64)
    valid, flag = _on_device(tuple(counts), x.device), arithmetic.refusals(x.device)
    memory = x if error is None else error
    shape: dict[str, Any] = {"BLOCK": block, "FEEDBACK": error is not None, "RMS": rms, **arithmetic.OPTIONS}
    with torch.cuda.device_of(x):
        _sizes[(parts, rows)](x, memory, partials, valid, elements, **shape)
        _signs[(parts, rows)](
            x, memory, partials, valid, wire, flag, elements, wire.stride(0),
            PARTS=triton.next_power_of_2(parts), **shape,
        )  # fmt: skip
    return False


def one_bit_decode(wire: Tensor, out: Tensor) -> None:
    rows, elements = out.shape
    grid = (triton.cdiv(elements, arithmetic.BLOCK), rows)
    with torch.cuda.device_of(out):
        _write[grid](wire, out, elements, wire.stride(0), BLOCK=arithmetic.BLOCK, **arithmetic.OPTIONS)


def one_bit_reduce(wire: Tensor, out: Tensor, divisor: int) -> None:
    rows, elements = len(wire), out.numel()
    grid = (triton.cdiv(elements, arithmetic.BLOCK),)
    with torch.cuda.device_of(out):
        _reduce[grid](
            wire, out, rows, elements, wire.stride(0),
            BLOCK=arithmetic.BLOCK, DIVISOR=divisor, **arithmetic.OPTIONS,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _on_device(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """The same counts come every step: copied once, because the copy waits for the GPU."""
    return torch.tensor(counts, dtype=torch.int32, device=device)


@triton.jit
def _target(x, memory, at, inside, FEEDBACK: tl.constexpr):
    """The tensor to encode: x, or x + memory."""
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    if FEEDBACK:
        value = tl.load(memory + at, mask=inside, other=0) + value
    return value


@triton.jit
def _sizes(
    x, memory, partials, counts, elements,
    BLOCK: tl.constexpr, FEEDBACK: tl.constexpr, RMS: tl.constexpr,
):  # fmt: skip
    """The sum of |c| or of c^2 over a part of a row; infinity if it holds NaN or Inf."""
    part, row, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    x += row.to(tl.int64) * elements
    memory += row.to(tl.int64) * elements
    count = tl.load(counts + row)
    total = tl.zeros((BLOCK,), tl.float64)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(part * BLOCK, elements, parts * BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = _target(x, memory, at, at < elements, FEEDBACK)
        value = tl.where(at < count, value, 0.0)  # not in the mask of the load, which would then not be vectorised
        bad |= special(value).to(tl.int32)
        size = tl.abs(value).to(tl.float64)
        total += size * size if RMS else size
    tl.store(partials + row * parts + part, tl.where(tl.max(bad, 0) > 0, float("inf"), tl.sum(total, 0)))


@triton.jit
def _signs(
    x, memory, partials, counts, wire, refused, elements, stride,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, FEEDBACK: tl.constexpr, RMS: tl.constexpr,
):  # fmt: skip
    """Scale, signs and new memory of a part of a row, last block first: it may still be in the cache."""
    part, row, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    each = tl.arange(0, PARTS)
    count = tl.load(counts + row)
    mean = tl.sum(tl.load(partials + row * parts + each, mask=each < parts, other=0.0), 0)
    mean = mean / tl.maximum(count, 1).to(tl.float64)
    scale = (tl.sqrt(mean) if RMS else mean).to(tl.float32)
    refuse = special(scale)
    x += row.to(tl.int64) * elements
    memory += row.to(tl.int64) * elements
    wire += row.to(tl.int64) * stride
    if part == 0:
        bits = tl.where(refuse, float("nan"), scale).to(tl.int32, bitcast=True)
        byte = tl.arange(0, 4)
        tl.store(wire + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8))
        tl.store(refused, 1, mask=refuse)
    place = tl.arange(0, 8)[None, :]
    blocks = tl.cdiv(elements - part * BLOCK, parts * BLOCK)
    written = tl.where(refuse, 0, elements)  # Triton 3.9 interprets no mask of a block with scalars compared in it
    for back in range(blocks):
        start = (part + (blocks - 1 - back) * parts) * BLOCK
        byte = start // 8 + tl.arange(0, BLOCK // 8)
        at = byte[:, None] * 8 + place
        inside = at < written
        value = _target(x, memory, at, inside, FEEDBACK)
        positive = inside & (value >= 0)
        packed = tl.sum(positive.to(tl.int32) << place, 1).to(tl.uint8)
        tl.store(wire + 4 + byte, packed, mask=byte * 8 < written)
        if FEEDBACK:
            rest = tl.where(positive, value - scale, value + scale)
            tl.store(memory + at, tl.where(at < count, rest, 0.0), mask=inside)


@triton.jit
def _decoded(wire, byte, elements):
    """The eight elements of each byte of the row at `wire`: the bit, inverted, is the sign bit of the scale."""
    head = tl.arange(0, 4)
    scale = tl.sum(tl.load(wire + head).to(tl.int32) << (8 * head), 0)
    packed = tl.load(wire + 4 + byte, mask=byte * 8 < elements, other=0).to(tl.int32)
    sign = ((packed[:, None] >> tl.arange(0, 8)[None, :]) & 1) ^ 1
    return (scale ^ (sign << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _write(wire, out, elements, stride, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    byte = tl.program_id(0) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    value = _decoded(wire + row * stride, byte, elements)
    tl.store(out + row * elements + at, value.to(out.dtype.element_ty), mask=at < elements)


@triton.jit
def _reduce(wire, out, rows, elements, stride, BLOCK: tl.constexpr, DIVISOR: tl.constexpr):
    """The rows are added in their order, in registers."""
    byte = tl.program_id(0) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    total = _decoded(wire, byte, elements)
    for _ in range(1, rows):
        wire += stride
        total += _decoded(wire, byte, elements)
    tl.store(out + at, mean(total, DIVISOR).to(out.dtype.element_ty), mask=at < elements)
