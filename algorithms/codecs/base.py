"""Codecs turn rows of floats into rows of bytes and back."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.base import Op
from algorithms.codecs.kernels import Kernels, kernels_for


class Codec(ABC):
    """Encodes every row of a (rows, elements) tensor on its own into a row of bytes.

    float32, float16 and bfloat16 tensors on any device; on `meta` nothing is computed. Decoding needs the dtype and
    row length of `out` to be those of the encoded tensor.
    """

    stand_in: ClassVar[Callable[[float], None] | None] = None
    """Called instead of coding where coding is emulated, with the bytes of memory traffic that coding causes."""
    native: bool = True
    """Whether to use compiled kernels; off: plain torch."""

    @abstractmethod
    def wire_bytes(self, elements: int, dtype: torch.dtype) -> int:
        """Bytes of one encoded row of `elements` elements."""

    def encode(
        self, x: Tensor, out: Tensor | None = None, valid: Sequence[int] | None = None, error: Tensor | None = None
    ) -> Tensor:
        """Encode x (rows, elements) into uint8 (rows, wire_bytes), written to `out` if given.

        valid: how many elements of each row are not padding; None: all. error: error-feedback memory, float32, in
        the shape of x: x + error is encoded, and the loss stays in it. ValueError for NaN or Inf; on a GPU the host
        does not wait for the verdict: a refused tensor decodes to NaN everywhere, and a later call raises.
        """
        wire = self.room(x) if out is None else out
        if not x.numel() or self._stands_in(2 * x.nbytes + wire.nbytes + (0 if error is None else 3 * error.nbytes), x):
            return wire
        if error is None:
            self._encode(x, wire, valid)
        else:
            self._encode_with_feedback(x, wire, valid, error)
        return wire

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Decode wire (rows, wire_bytes) into out (rows, elements)."""
        if out.numel() and not self._stands_in(wire.nbytes + out.nbytes, out):
            self._decode(wire, out)

    def reduce(self, wire: Tensor, out: Tensor, op: Op) -> None:
        """Decode wire (n, wire_bytes), sum or average the n rows in float32, write out (elements,)."""
        if out.numel() and not self._stands_in(wire.nbytes + 2 * len(wire) * out.nbytes, out):
            self._reduce(wire, out, op)

    def room(self, x: Tensor) -> Tensor:
        """New memory for the encoded x."""
        return x.new_empty((len(x), self.wire_bytes(x.shape[1], x.dtype)), dtype=torch.uint8)

    def buffer(self, x: Tensor) -> Tensor:
        """Room for the encoded x; the next call on the same thread, and stream of a GPU, may return the same memory.

        Kept between steps: large messages that come and go would fragment the heap.
        """
        shape = (len(x), self.wire_bytes(x.shape[1], x.dtype))
        needed = math.prod(shape)
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
        place = (x.device, threading.get_ident(), stream)
        if place not in self._buffers or self._buffers[place].numel() < needed:
            self._buffers[place] = torch.empty(needed, dtype=torch.uint8, device=x.device)
        return self._buffers[place][:needed].view(shape)

    @cached_property
    def _buffers(self) -> dict[tuple[torch.device, int, int], Tensor]:
        return {}

    def _stands_in(self, traffic: float, x: Tensor) -> bool:
        """Whether coding x is only emulated; charges `traffic` to the stand-in."""
        if Codec.stand_in is not None:
            Codec.stand_in(traffic)
        return x.is_meta or Codec.stand_in is not None

    def _kernels(self, x: Tensor) -> Kernels | None:
        return kernels_for(x) if self.native else None

    @abstractmethod
    def _encode(self, x: Tensor, wire: Tensor, valid: Sequence[int] | None) -> None: ...

    @abstractmethod
    def _decode(self, wire: Tensor, out: Tensor) -> None: ...

    @abstractmethod
    def _reduce(self, wire: Tensor, out: Tensor, op: Op) -> None: ...

    def _encode_with_feedback(self, x: Tensor, wire: Tensor, valid: Sequence[int] | None, error: Tensor) -> None:
        error.add_(x)
        self._encode(error.to(x.dtype), wire, valid)
        decoded = torch.empty_like(x)
        self.decode(wire, decoded)
        error.sub_(decoded)
        for row, count in zip(error, valid or [], strict=False):
            row[count:] = 0
