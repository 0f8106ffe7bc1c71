"""Where tensors lie in memory: densely, side by side, and the same memory as one flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def is_dense(x: Tensor) -> bool:
    """Whether the elements of x lie side by side, in whatever order of dimensions, each for itself."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(x: Tensor, y: Tensor) -> bool:
    """Whether equal places in memory hold equal elements of two tensors of one shape."""
    if x.stride() == y.stride():
        return True
    strides = zip(x.shape, x.stride(), y.stride(), strict=True)
    return all(a == b for size, a, b in strides if size > 1)


def are_adjacent(tensors: Sequence[Tensor]) -> bool:
    """Whether dense tensors of one type follow each other in one storage, in this order and without gaps."""
    return all(follows(x, y) for x, y in pairwise(tensors))


def follows(x: Tensor, y: Tensor) -> bool:
    """Whether y begins in memory where x ends."""
    return (
        y.data_ptr() == x.data_ptr() + x.nbytes
        and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        and y.dtype is x.dtype
    )


def flat(first: Tensor, elements: int) -> Tensor:
    """A view (elements,) of the memory that begins with `first`."""
    return first.detach().as_strided((elements,), (1,), first.storage_offset())


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """`flat` cut into views with the shapes and strides of dense tensors."""
    found, offset = [], flat.storage_offset()
    for x in like:
        found.append(flat.as_strided(x.size(), x.stride(), offset))
        offset += x.numel()
    return found


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """Positions of those that share memory with another one."""
    spans = sorted((x.data_ptr(), _end(x), number) for number, x in enumerate(tensors) if x.numel())
    found: set[int] = set()
    reach, holder = 0, -1
    for begin, end, number in spans:
        if begin < reach:
            found |= {holder, number}
        if end > reach:
            reach, holder = end, number
    return found


def _end(x: Tensor) -> int:
    """The address behind the last element."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.itemsize


def empty_flat(like: Sequence[Tensor]) -> Tensor:
    """New memory for all elements of tensors of one type."""
    return torch.empty(sum(x.numel() for x in like), dtype=like[0].dtype, device=like[0].device)
