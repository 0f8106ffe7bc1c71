"""Buckets: the parameters that travel together, and their place in memory (docs/design.md, The engine)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Bucket
from bagua_bench.fused.memory import is_dense


def split(sizes: Sequence[tuple[str, int]], bucket_size: int) -> list[list[int]]:
    """Cut a list of (dtype name, bytes) greedily into buckets of indices, dtype by dtype in the order of names.

    A bucket closes as soon as it holds at least `bucket_size` bytes: it overshoots, and tensors are never cut.
    """
    buckets: list[list[int]] = []
    for dtype in sorted({name for name, _ in sizes}):
        members, filled = [], 0
        for index in (i for i, (name, _) in enumerate(sizes) if name == dtype):
            members.append(index)
            filled += sizes[index][1]
            if filled >= bucket_size:
                buckets.append(members)
                members, filled = [], 0
        if members:
            buckets.append(members)
    return buckets


def _by_choice(
    groups: Sequence[Sequence[Parameter]], params: Sequence[Parameter], algorithm: object
) -> list[list[Parameter]]:
    """The groups as buckets; a group that holds several types gives one bucket per type."""
    chosen = [p for group in groups for p in group]
    if len(chosen) != len(params) or set(chosen) != set(params):
        raise ValueError(
            f"{type(algorithm).__name__}.partition: {len(chosen)} parameters in its buckets, {len(params)} are "
            "trained; each belongs in one bucket"
        )
    return [bucket for group in groups for bucket in by_size(group, 2**63)]


def by_size(ordered: Sequence[Parameter], bucket_size: int) -> list[list[Parameter]]:
    """What each bucket holds if it closes at so many bytes; types and devices are kept apart."""
    sizes = [(f"{p.device}/{p.dtype}", p.nbytes) for p in ordered]
    return [[ordered[i] for i in group] for group in split(sizes, bucket_size)]


def make_buckets(
    params: Iterable[Parameter], bucket_size: int, multiple: int, gradients: bool, algorithm: Algorithm | None = None
) -> list[Bucket]:
    """Move trainable parameters into buckets of flat storage: as `algorithm` asks, or by size, in the given order.

    `bucket_size` in bytes; lengths are padded to a `multiple` (the number of ranks). Peak memory is one bucket
    above that of the parameters. A parameter that is not dense (a slice of another tensor) becomes so. ValueError for
    an algorithm's choice that is no partition.
    """
    trained = [p for p in params if p.requires_grad]
    own = algorithm.partition(trained[::-1]) if algorithm is not None else None
    groups = by_size(trained, bucket_size) if own is None else _by_choice(own, trained, algorithm)
    return [_flatten(str(i), group, multiple, gradients) for i, group in enumerate(groups)]


def _flatten(name: str, params: list[Parameter], multiple: int, gradients: bool) -> Bucket:
    first = params[0]
    elements = sum(p.numel() for p in params)
    length = -(-elements // multiple) * multiple
    weight = _padded(first, elements, length)
    grad = _padded(first, elements, length) if gradients else first.new_empty(0)
    for p in params:
        if not is_dense(p):
            p.data = torch.empty_like(p).copy_(p.data)
    bucket = Bucket(name, params, weight, grad)
    for p, view in zip(params, bucket.views(weight), strict=True):
        view.copy_(p.detach())
        p.data = view
    return bucket


def _padded(like: Tensor, elements: int, length: int) -> Tensor:
    flat = torch.empty(length, dtype=like.dtype, device=like.device)
    flat[elements:] = 0
    return flat
