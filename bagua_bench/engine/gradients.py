"""Gradients of a model under an engine: their place in memory, their norm, and the missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from algorithms.base import Bucket, Comm, Op


class Gradients:
    """The gradients of all parameters in `buckets`; they lie in the buckets where the algorithm communicates them."""

    def __init__(self, buckets: Sequence[Bucket], names: Mapping[Parameter, str], communicated: bool) -> None:
        self._buckets, self._names = buckets, names
        self._home: dict[Parameter, tuple[int, Tensor | None]] = {}
        for index, bucket in enumerate(buckets):
            views = bucket.views(bucket.grad) if communicated else [None] * len(bucket.params)
            self._home.update({p: (index, view) for p, view in zip(bucket.params, views, strict=True)})

    @property
    def params(self) -> list[Parameter]:
        """All parameters, bucket by bucket."""
        return list(self._home)

    def bring_home(self, p: Parameter) -> int:
        """Put the gradient of p into its bucket; return its number. RuntimeError, naming p, if it cannot be."""
        index, view = self._home[p]
        if p.grad is None:
            raise RuntimeError(f"{self._names[p]}: its gradient is gone already; an optimizer in the backward pass?")
        if p.grad.is_sparse:
            raise ValueError(f"{self._names[p]}: sparse gradients are not supported")
        if view is not None and p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad.detach())
            p.grad = view
        return index

    def zero(self, p: Parameter) -> int:
        """Give p a gradient of zeros; return the bucket's number."""
        index, view = self._home[p]
        assert view is not None
        p.grad = view.zero_()
        return index

    def clear(self) -> None:
        """Remove the gradients of all parameters."""
        for p in self._home:
            p.grad = None

    def clip(self, max_norm: float) -> Tensor:
        """Scale them, in the model's order, to a norm of at most `max_norm`; return the norm before, a scalar."""
        return clip_grad_norm_([p for p in self._names if p in self._home and p.grad is not None], max_norm)

    def refuse(self, without: Iterable[Parameter]) -> None:
        """Raise a RuntimeError that names the parameters which should have a gradient and have none."""
        names = sorted(self._names[p] for p in without if p.grad is None)
        if names:
            raise RuntimeError(
                f"{len(names)} parameters got no gradient in this step: {', '.join(names[:5])}; pass "
                "find_unused_parameters=True if that is intended, or call engine.rebuild() if they were frozen"
            )

    def used_anywhere(self, unused: Iterable[Parameter], comm: Comm) -> list[bool]:
        """Whether some rank has used each of `params`; collective. `unused`: those that this rank has not used."""
        own = set(unused)
        flags = torch.tensor([p not in own for p in self._home], dtype=torch.uint8, device=self._buckets[0].grad.device)
        comm.all_reduce(flags, Op.MAX)
        return [bool(flag) for flag in flags.tolist()]

    def versions(self) -> list[int]:
        """Numbers that change with every write to the gradients."""
        return [bucket.grad._version for bucket in self._buckets]

    def replaced(self) -> bool:
        """Whether some gradient lies elsewhere; those that were cleared do not count."""
        homes = ((p.grad, view) for p, (_, view) in self._home.items() if p.grad is not None and view is not None)
        return any(grad.data_ptr() != view.data_ptr() for grad, view in homes)
