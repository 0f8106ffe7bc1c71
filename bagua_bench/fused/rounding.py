"""Whether the elements of a tensor are rounded alike, wherever in it they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

_PIECES, _LENGTH = 64, 31
"""Vectors of up to 64 bytes, and twice as many elements in a turn of a loop: most of these elements are left over."""

_OPERATIONS: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]] = (
    lambda x, y, z: x.add(y, alpha=0.37),
    lambda x, y, z: x.mul(0.9),
    lambda x, y, z: x.lerp(y, 0.1),
    lambda x, y, z: x.lerp(y, 0.7),
    lambda x, y, z: x.addcmul(y, z, value=0.001),
    lambda x, y, z: x.addcdiv(y, z, value=-0.013),
    lambda x, y, z: z.sqrt().div(0.0317).add(1e-8),
    lambda x, y, z: x.sub(y).mul(z).div(z),
    lambda x, y, z: torch.maximum(x.abs(), y).clamp(0.01, 0.8),
    lambda x, y, z: 0.77 / z,
)
"""What the updates of torch's optimizers are made of; z is positive."""


@cache
def is_uniform(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether an element becomes the same, to the last bit, in a long tensor and in a short one.

    torch computes most of a tensor in vectors and what is left over one by one. In a CPU's bfloat16 and float16 the
    two round differently; whether they do in other types depends on how torch was compiled for the processor.
    """
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(_PIECES * _LENGTH, generator=generator).to(device, dtype) for _ in range(3))
    z = z.abs().add(0.1)
    for operation in _OPERATIONS:
        pieces = zip(*(part.split(_LENGTH) for part in (operation(x, y, z), x, y, z)), strict=True)
        if not all(torch.equal(whole, operation(*parts)) for whole, *parts in pieces):
            return False
    return True
