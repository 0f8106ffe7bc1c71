"""One bit per element: a scale and the signs (docs/algorithms.md, Codecs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from algorithms.base import Op
from algorithms.codecs.base import Codec

_NOT_FINITE = "OneBit: the tensor holds NaN or Inf (has training diverged?)"
_WEIGHTS = [1, 2, 4, 8, 16, 32, 64, 128]  # element k of a byte is bit k; set where the element is >= 0


class OneBit(Codec):
    """x ~ s sign(x), s the mean of |x| (the best scale in the least-squares sense) or its root mean square.

    Meant for use with error feedback: the code alone keeps little. A row of c elements is s in float32 and
    ceil(c / 8) bytes of signs.
    """

    def __init__(self, scale: Literal["mean", "rms"] = "mean", native: bool = True) -> None:
        self.scale = scale
        self.native = native

    def wire_bytes(self, elements: int, dtype: torch.dtype) -> int:
        return 4 + -(-elements // 8)

    def _encode(self, x: Tensor, wire: Tensor, valid: Sequence[int] | None) -> None:
        self._encode_with_feedback(x, wire, valid, None)

    def _encode_with_feedback(self, x: Tensor, wire: Tensor, valid: Sequence[int] | None, error: Tensor | None) -> None:
        rows, elements = x.shape
        counts = [elements] * rows if valid is None else list(valid)
        kernels = self._kernels(x)
        if kernels is None:
            self._encode_reference(x, wire, counts, error)
        elif kernels.one_bit_encode(x, wire, error, counts, self.scale == "rms"):
            raise ValueError(_NOT_FINITE)

    def _decode(self, wire: Tensor, out: Tensor) -> None:
        kernels = self._kernels(out)
        if kernels is None:
            out.copy_(self._decode_reference(wire, out.shape[1]))
        else:
            kernels.one_bit_decode(wire, out)

    def _reduce(self, wire: Tensor, out: Tensor, op: Op) -> None:
        rows, elements, kernels = len(wire), out.numel(), self._kernels(out)
        divisor = rows if op is Op.AVG else 1
        if kernels is not None:
            kernels.one_bit_reduce(wire, out, divisor)
            return
        total = self._decode_reference(wire[:1], elements)[0]
        for j in range(1, rows):
            total += self._decode_reference(wire[j : j + 1], elements)[0]
        out.copy_(total / divisor)

    def _encode_reference(self, x: Tensor, wire: Tensor, counts: list[int], error: Tensor | None) -> None:
        target = x.float() if error is None else error.add_(x)
        count = torch.tensor(counts, device=x.device)[:, None]
        padding = torch.arange(x.shape[1], device=x.device) >= count
        sizes = target.double().masked_fill(padding, 0)
        total = sizes.abs().sum(1, keepdim=True) if self.scale == "mean" else sizes.square().sum(1, keepdim=True)
        mean = total / count.clamp(min=1)
        scale = (mean if self.scale == "mean" else mean.sqrt()).float()
        if not torch.isfinite(scale).all():
            raise ValueError(_NOT_FINITE)
        positive = target >= 0
        bits = torch.nn.functional.pad(positive, (0, -x.shape[1] % 8)).view(len(x), -1, 8)
        wire[:, :4] = scale.view(torch.uint8)
        wire[:, 4:] = (bits * torch.tensor(_WEIGHTS, device=x.device)).sum(-1).to(torch.uint8)
        if error is not None:
            error.sub_(torch.where(positive, scale, -scale)).masked_fill_(padding, 0)

    def _decode_reference(self, wire: Tensor, elements: int) -> Tensor:
        scale = wire[:, :4].clone().reshape(-1).view(torch.float32)[:, None]  # rows need not start at multiples of 4
        bits = wire[:, 4:, None] & torch.tensor(_WEIGHTS, dtype=torch.uint8, device=wire.device)
        return torch.where(bits.view(len(wire), -1)[:, :elements] != 0, scale, -scale)
