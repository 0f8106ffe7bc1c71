"""Which parameters of an optimizer are joined, which are cut, and which stay as they are (docs/fused-optimizer.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from bagua_bench.fused.memory import follows, is_dense, overlapping, same_layout
from bagua_bench.fused.parts import Alone, Cut, Joined, Own, Part, States
from bagua_bench.fused.rounding import is_uniform

_PER_THREAD = 2**17
"""Elements of a piece on a CPU: what an update touches of it, some tensors of 0.5 MB, stays in the cache of a core."""
_WAYS = ("foreach", "fused", "differentiable")
"""Keys of a group that say how torch computes."""
_ELSEWHERE = 2**22
"""The most elements of joined parameters elsewhere; launching a kernel costs nothing beside computing as many."""


class Plan:
    """What stands for the parameters that have a gradient, until one of them, its gradient or its state changes."""

    def __init__(self, optimizer: Optimizer) -> None:
        states: States = optimizer.state
        pins = bool(getattr(optimizer, "pins_state", False))
        shared = _shared(optimizer)
        self.groups = [list(_parts(group, states, pins, shared)) for group in optimizer.param_groups]
        self._parts = [part for parts in self.groups for part in parts]
        self._made_for = _Signature(optimizer)
        self._stale = False

    @property
    def tensors(self) -> int:
        """How many tensors the optimizer updates."""
        return sum(len(part.pieces) for part in self._parts)

    def fits(self, optimizer: Optimizer) -> bool:
        """Whether it still describes the optimizer's parameters."""
        same = not self._stale and _Signature(optimizer) == self._made_for
        return same and all(part.holds() for part in self._parts)

    @contextmanager
    def in_place(self, optimizer: Optimizer) -> Iterator[None]:
        """A context in which the optimizer has the pieces in the place of its parameters."""
        states, lists = optimizer.state, [group["params"] for group in optimizer.param_groups]
        during: defaultdict[Tensor, Own] = defaultdict(dict)
        for part in self._parts:
            part.enter(during, states)
        optimizer.state = during
        for group, parts in zip(optimizer.param_groups, self.groups, strict=True):
            group["params"] = [piece for part in parts for piece in part.pieces]
        try:
            yield
        finally:
            optimizer.state = states
            for group, params in zip(optimizer.param_groups, lists, strict=True):
                group["params"] = params
            left = [part.leave(during, states) for part in self._parts]
            self._stale = any(left)


class _Signature:
    """What a plan depends on: the parameters that have a gradient, where they lie, and the objects of their states."""

    def __init__(self, optimizer: Optimizer) -> None:
        states = optimizer.state
        self._numbers = [torch.get_num_threads()]
        self._objects: list[Any] = []  # held, so that their ids do not become those of others
        for number, group in enumerate(optimizer.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            grads: list[Tensor] = [p.grad for p in params]
            owns: list[Own | None] = [states.get(p) for p in params]
            values = [value for own in owns if own is not None for value in own.values()]
            objects = [*params, *(g.dtype for g in grads), *(g.layout for g in grads), *owns, *values]
            self._numbers += [number, *(bool(group.get(key)) for key in _WAYS), len(params), *map(id, objects)]
            self._numbers += [p.data_ptr() for p in params]
            self._objects += objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Signature) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]


def _shared(optimizer: Optimizer) -> set[int]:
    """Addresses of parameters whose memory belongs to several of them: the order of their updates counts."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.layout is torch.strided]
    return {params[number].data_ptr() for number in overlapping(params)}


def _parts(group: dict[str, Any], states: States, pins: bool, shared: set[int]) -> Iterator[Part]:
    small: dict[Hashable, list[Tensor]] = defaultdict(list)
    for p in group["params"]:
        if p.grad is None:
            continue
        own = states.get(p, {})
        as_it_is = p.data_ptr() in shared or group.get("fused") or group.get("differentiable")
        kind = None if as_it_is else _kind(p, own)
        if kind is None:
            yield Alone(p)
        elif p.numel() < _most(p.device):
            small[kind].append(p)
        elif p.device.type == "cpu" and not group.get("foreach") and _is_laid_out(p, own):
            yield Cut(p, states, _most(p.device))
        else:
            yield Alone(p)
    for params in small.values():
        for run in _runs(params, states, pins):
            yield Joined(run, states) if len(run) > 1 else Alone(run[0])


def _most(device: torch.device) -> int:
    """The most elements that are joined, and of a piece that is cut off."""
    return _PER_THREAD * torch.get_num_threads() if device.type == "cpu" else _ELSEWHERE


def _kind(p: Tensor, own: Own) -> Hashable | None:
    """What parameters that are joined have in common; None if this one has to stay as it is."""
    g = p.grad
    assert g is not None
    plain = type(p) in (Tensor, Parameter) and p.device.type != "meta" and p.is_floating_point()
    if not plain or not p.dim() or not p.numel() or g.layout is not torch.strided or g.dtype is not p.dtype:
        return None
    if not is_dense(p) or not is_uniform(p.dtype, p.device):
        return None
    kinds = [(key, _kind_of_state(p, value)) for key, value in own.items()]
    return None if any(kind is None for _, kind in kinds) else (p.dtype, p.device, *kinds)


def _kind_of_state(p: Tensor, value: Any) -> Hashable | None:
    if isinstance(value, Tensor):
        fits = value.layout is torch.strided and (not value.dim() or value.shape == p.shape)
        return (value.dtype, value.device, bool(value.dim())) if fits else None
    return (type(value), value) if isinstance(value, bool | int | float | str | None) else None


def _is_laid_out(p: Tensor, own: Own) -> bool:
    return all(same_layout(x, p) for x in own.values() if isinstance(x, Tensor) and x.dim())


def _runs(params: Sequence[Tensor], states: States, pins: bool) -> Iterator[list[Tensor]]:
    """Parameters of one kind to be joined: those with equal scalars, in the order of memory, up to the most."""
    for members in _with_equal_scalars(params, states):
        run, elements = list[Tensor](), 0
        for p in sorted(members, key=Tensor.data_ptr):
            full = elements + p.numel() > _most(p.device)
            if run and (full or (pins and not _states_follow(states, run[-1], p))):
                yield run
                run, elements = [], 0
            run.append(p)
            elements += p.numel()
        yield run


def _with_equal_scalars(params: Sequence[Tensor], states: States) -> list[list[Tensor]]:
    first = states.get(params[0], {})
    keys = [key for key, value in first.items() if isinstance(value, Tensor) and not value.dim()]
    values = [torch.stack([states[p][key] for p in params]).tolist() for key in keys]  # one wait for a GPU per key
    found: dict[Hashable, list[Tensor]] = defaultdict(list)
    for number, p in enumerate(params):
        found[tuple(column[number] for column in values)].append(p)
    return list(found.values())


def _states_follow(states: States, p: Tensor, q: Tensor) -> bool:
    """Whether what the optimizer keeps of two parameters lies side by side, where it has to stay."""
    pairs = [(states[p][key], states[q][key]) for key in (states.get(p, ()))]
    own = [(x, y) for x, y in pairs if isinstance(x, Tensor) and x.dim()]
    return all(follows(x, y) and same_layout(x, p) and same_layout(y, q) for x, y in own)
