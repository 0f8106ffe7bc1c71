"""Notices what happens to a model behind the engine's back: replaced data, parameters that come, go or thaw."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from algorithms.base import Bucket
from bagua_bench.engine.layout import refuse_strangers

_AGAIN = "call engine.rebuild() on all ranks after such a change"
_LAYOUT = ("shape", "dtype", "device", "memory format")


class Watch:
    """A model's parameters as they were when the buckets were made.

    `check` costs some look-ups and comparisons per parameter and module: about 0.1 ms for 300 of them.
    """

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket]) -> None:
        self._model = model
        self._homes = {p: view for b in buckets for p, view in zip(b.params, b.views(b.weight), strict=True)}
        self._trained = [(p, view, p.data_ptr()) for p, view in self._homes.items()]
        self._named = dict(model.named_parameters())
        self._frozen = [(name, p) for name, p in self._named.items() if p not in self._homes]
        self._stepped: list[int] = []
        self.changes = 0
        """How often modules or buffers have come or gone."""
        self._note_structure()

    def check(self) -> bool:
        """Whether the data of some trainable parameter was replaced.

        RuntimeError, naming it, for another structure, and for data that does not fit into the buckets.
        """
        if not all(len(owner) == count for owner, count in self._counts) or not all(
            owner.get(key) is part for owner, key, part in self._parts
        ):
            self._compare()
            self._note_structure()
            self.changes += 1
        for name, p in self._frozen:
            if p.requires_grad:
                raise RuntimeError(f"{name}: it requires a gradient, and did not before; {_AGAIN}")
        replaced = [(p, home) for p, home, pointer in self._trained if p.data_ptr() != pointer]
        for p, home in replaced:
            before, now = ((x.shape, x.dtype, x.device, x.stride()) for x in (home, p))
            if before != now:
                what = next(name for name, a, b in zip(_LAYOUT, before, now, strict=True) if a != b)
                raise RuntimeError(f"{self._name(p)}: its {what} has changed; {_AGAIN}")
        return bool(replaced)

    def bring_home(self) -> None:
        """Put replaced data into the buckets."""
        if self.check():
            for p, home, pointer in self._trained:
                if p.data_ptr() != pointer:
                    home.copy_(p.detach())
                    p.data = home

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """ValueError for parameters that were added to the optimizer and are not in the model."""
        now = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if now != self._stepped:
            refuse_strangers(self._model, optimizer)
            self._stepped = now

    def versions(self) -> list[tuple[int, int]]:
        """Change with every write to a trainable parameter, except those of algorithms, which write to buckets."""
        return [(p._version, p.data_ptr()) for p, _, _ in self._trained]

    def _note_structure(self) -> None:
        modules = list(self._model.modules())
        owners: list[dict[str, Any]] = [d for m in modules for d in (m._parameters, m._modules)]
        self._counts = [(owner, len(owner)) for owner in (*owners, *(m._buffers for m in modules))]
        self._parts = [(owner, key, part) for owner in owners for key, part in owner.items()]

    def _compare(self) -> None:
        """RuntimeError if the parameters are others; modules without any may come and go."""
        now = dict(self._model.named_parameters())
        for name in [*now, *self._named]:
            if name not in self._named:
                raise RuntimeError(f"{name}: this parameter is new; {_AGAIN}")
            if name not in now:
                raise RuntimeError(f"{name}: this parameter is gone; {_AGAIN}")
            if now[name] is not self._named[name]:
                raise RuntimeError(f"{name}: another Parameter is in its place; {_AGAIN}, with an optimizer of it")

    def _name(self, p: Tensor) -> str:
        return next(name for name, own in self._named.items() if own is p)


_OWNERS = WeakIdKeyDictionary()  # of trainable parameters: weak references to the engines
_CHANGING = threading.Lock()  # ranks may be threads of one process


def take(named: Mapping[str, Parameter], owner: object) -> None:
    """Note that `owner` moves these parameters into its buckets. ValueError that names one which has another owner."""
    with _CHANGING:
        for name, p in named.items():
            other = _OWNERS[p]() if p in _OWNERS else None
            if other not in (None, owner):
                raise ValueError(
                    f"{name}: another Engine trains it; close() that one, or make one Engine of both models"
                )
        for p in named.values():
            _OWNERS[p] = weakref.ref(owner)


def release(owner: object) -> None:
    """Note that the owner has no parameters any more."""
    with _CHANGING:
        for p in [p for p, other in _OWNERS.items() if other() is owner]:
            del _OWNERS[p]
