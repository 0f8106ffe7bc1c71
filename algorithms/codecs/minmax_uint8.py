"""MinMaxUInt8: 8 bits per element on a uniform grid between a chunk's minimum and maximum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algorithms.base import Op
from algorithms.codecs.base import Codec

_HEADER = 32
_ALIGN = 32
_NOT_FINITE = (
    "MinMaxUInt8: the tensor holds NaN or Inf, or values whose range or levels overflow float32 "
    "(has training diverged?)"
)


class MinMaxUInt8(Codec):
    """Deterministic, no memory. |decoded - x| <= (range + eps) / 510 + 2^-23 max|x|; an exact zero stays zero.

    A row of c elements is 32 + ceil32(c) bytes: minimum and maximum in the input's dtype, then one byte each.
    `eps` is absolute and part of the format: chunks of a range near it use few of the 256 levels.
    """

    def __init__(self, eps: float = 1e-7, native: bool = True) -> None:
        self.eps = eps
        self.native = native

    def wire_bytes(self, elements: int, dtype: torch.dtype) -> int:
        return _HEADER + -(-elements // _ALIGN) * _ALIGN

    def _encode(self, x: Tensor, wire: Tensor, valid: Sequence[int] | None) -> None:
        """Padding is encoded like everything else: zeros stay zeros, at most they widen the range."""
        kernels = self._kernels(x)
        if kernels is None:
            self._encode_reference(x, wire)
        elif kernels.minmax_encode(x, wire, self.eps):
            raise ValueError(_NOT_FINITE)

    def _decode(self, wire: Tensor, out: Tensor) -> None:
        kernels = self._kernels(out)
        if kernels is None:
            out.copy_(self._decode_reference(wire, out.shape[1], out.dtype))
        else:
            kernels.minmax_decode(wire, out, self.eps)

    def _reduce(self, wire: Tensor, out: Tensor, op: Op) -> None:
        rows, elements, kernels = len(wire), out.numel(), self._kernels(out)
        divisor = rows if op is Op.AVG else 1
        if kernels is not None:
            kernels.minmax_reduce(wire, out, self.eps, divisor)
            return
        decoded = (self._decode_reference(wire[j : j + 1], elements, out.dtype)[0] for j in range(rows))
        total = next(decoded)
        for row in decoded:
            total += row
        out.copy_(total / divisor)

    def _encode_reference(self, x: Tensor, wire: Tensor) -> None:
        low, high = x.amin(1), x.amax(1)
        scale, upper = self._grid(low, high)
        extremes = torch.stack([high.float() - low.float(), low.float() * scale[:, 0], upper[:, 0]])
        if not torch.isfinite(extremes).all():  # amin and amax propagate NaN
            raise ValueError(_NOT_FINITE)
        levels = torch.minimum(torch.round(x.float() * scale), upper)
        header = torch.stack([low, high], 1).view(torch.uint8)
        wire[:, : header.shape[1]] = header
        wire[:, _HEADER : _HEADER + x.shape[1]] = (levels - (upper - 255)).clamp(0, 255).to(torch.uint8)

    def _decode_reference(self, wire: Tensor, elements: int, dtype: torch.dtype) -> Tensor:
        header = wire[:, : 2 * dtype.itemsize].contiguous().view(dtype)
        scale, upper = self._grid(header[:, 0], header[:, 1])
        return (wire[:, _HEADER : _HEADER + elements].float() + (upper - 255)) / scale

    def _grid(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and upper level of every row, float32 (rows, 1)."""
        spread = (high.float() - low.float()) + self.eps
        scale = torch.full_like(spread, 255) / spread  # 255 / spread would multiply by the reciprocal
        return scale[:, None], torch.round(high.float() * scale)[:, None]
