"""What a codec is: chunks of floats to rows of bytes and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from algorithms.base import Op


class Codec(ABC):
    """Encodes every row of a (chunks, elements) tensor on its own into a row of bytes.

    float32, float16 and bfloat16 tensors on any device. Decoding needs the dtype and row length of `out` to be
    those of the encoded tensor.
    """

    _buffer: Tensor | None = None

    @abstractmethod
    def wire_bytes(self, elements: int, dtype: torch.dtype) -> int:
        """Bytes of one encoded row of `elements` elements."""

    @abstractmethod
    def encode(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Encode x (chunks, elements) into uint8 (chunks, wire_bytes), written to `out` if given.

        ValueError if x holds NaN or Inf.
        """

    def buffer(self, x: Tensor) -> Tensor:
        """Room for the encoded x; the next call may return the same memory.

        Kept between steps: large messages that come and go would fragment the heap.
        """
        shape = (len(x), self.wire_bytes(x.shape[1], x.dtype))
        needed = math.prod(shape)
        if self._buffer is None or self._buffer.numel() < needed or self._buffer.device != x.device:
            self._buffer = torch.empty(needed, dtype=torch.uint8, device=x.device)
        return self._buffer[:needed].view(shape)

    @abstractmethod
    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Decode wire (chunks, wire_bytes) into out (chunks, elements)."""

    @abstractmethod
    def reduce(self, wire: Tensor, out: Tensor, op: Op) -> None:
        """Decode wire (n, wire_bytes), sum or average the n rows in float32, write out (elements,)."""
