"""Checks that the parameters of a model can be moved into flat buckets: their layout, and the memory they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from bagua_bench.fused.memory import is_dense


def refuse_unfit(model: nn.Module, optimizer: Optimizer) -> None:
    """ValueError, one line that names the parameter, for a model that could not be trained correctly."""
    named = dict(model.named_parameters())
    for message in (*_kinds(named), *_sharing(model, named), *_strangers(named, optimizer)):
        raise ValueError(message)


def refuse_strangers(model: nn.Module, optimizer: Optimizer) -> None:
    """ValueError for an optimizer that trains parameters of no part of the model."""
    for message in _strangers(dict(model.named_parameters()), optimizer):
        raise ValueError(message)


def _kinds(named: dict[str, nn.Parameter]) -> Iterator[str]:
    if not any(p.requires_grad for p in named.values()):
        yield "model: it has no trainable parameters (none with requires_grad=True), there is nothing to train"
    for name, p in named.items():
        if isinstance(p, UninitializedParameter):
            yield f"{name}: it has no shape yet; run a forward pass before Engine is made"
        elif type(p.data) is not Tensor:
            yield f"{name}: a {type(p.data).__name__}; allowed: plain tensors"
        elif p.requires_grad and p.is_complex():
            yield f"{name}: {p.dtype} parameters are not supported; keep torch.view_as_real of it as the parameter"
        elif p.requires_grad and not is_dense(p) and _repeats(p):
            yield f"{name}: elements share memory (an expanded tensor?); make it a parameter of its own with clone()"


def _sharing(model: nn.Module, named: dict[str, nn.Parameter]) -> Iterator[str]:
    """A trainable parameter that lies in another's memory would be separated from it in a bucket."""
    by_storage: dict[int, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, x in [*named.items(), *model.named_buffers()]:
        if not isinstance(x, UninitializedParameter) and type(x.data) is Tensor and x.layout is torch.strided:
            by_storage[x.untyped_storage()._cdata].append((name, x))
    for tensors in by_storage.values():
        tensors.sort(key=lambda entry: _span(entry[1]))
        for (a, x), (b, y) in combinations(tensors, 2) if _any_intersect(tensors) else ():
            if (x.requires_grad or y.requires_grad) and _overlap(x, y):
                yield f"{b}: it shares memory with {a}; to tie them use one Parameter for both, or clone() one"


def _strangers(named: dict[str, nn.Parameter], optimizer: Optimizer) -> Iterator[str]:
    """Parameters that are trained but not communicated would drift apart."""
    own = set(named.values())
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.requires_grad and p not in own:
                yield (
                    f"optimizer: group {number} trains a parameter of shape {tuple(p.shape)} that is not in the model, "
                    "so that it would differ between ranks; make it a parameter of the model"
                )


def _span(x: Tensor) -> tuple[int, int]:
    """First byte of x in its storage, and the one behind its last."""
    first = int(x.storage_offset())
    last = first + sum((int(size) - 1) * int(stride) for size, stride in zip(x.shape, x.stride(), strict=True))
    return first * x.itemsize, (last + 1) * x.itemsize


def _any_intersect(tensors: list[tuple[str, Tensor]]) -> bool:
    spans = [_span(x) for _, x in tensors]
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))


def _overlap(x: Tensor, y: Tensor) -> bool:
    (a, b), (c, d) = _span(x), _span(y)
    if b <= c or d <= a or not x.numel() or not y.numel():
        return False
    return bool(torch.isin(_bytes(x), _bytes(y)).any())


def _bytes(x: Tensor) -> Tensor:
    """Where the elements of x begin in its storage, in bytes."""
    return _places(x) * x.itemsize + _span(x)[0]


def _repeats(x: Tensor) -> bool:
    return len(_places(x).unique()) < x.numel()


def _places(x: Tensor) -> Tensor:
    """Elements between the first one of x and each of its elements, (x.numel(),)."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places.flatten()
