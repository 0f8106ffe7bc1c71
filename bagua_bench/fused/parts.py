"""What an optimizer updates in the place of parameters: one as it is, several joined, or one cut into pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bagua_bench.fused.memory import are_adjacent, empty_flat, flat, same_layout, views

Own = dict[str, Any]
"""The state of one parameter."""
States = MutableMapping[Tensor, Own]


class Part(ABC):
    """Some parameters, and the tensors with gradient and state that stand for them during a step.

    The state of a parameter is up to date between steps, so that steps of other kinds may follow.
    """

    pieces: list[Tensor]
    """What the optimizer updates; each has a `grad` between `enter` and `leave`."""

    def holds(self) -> bool:
        """Whether the state of the parameters still allows for it."""
        return True

    @abstractmethod
    def enter(self, during: States, states: States) -> None:
        """Give the pieces their gradients, and their states, made of those in `states`, in `during`."""

    @abstractmethod
    def leave(self, during: States, states: States) -> bool:
        """Bring weights and state back, the latter to `states`. Whether the optimizer made or replaced state."""


class Alone(Part):
    """One parameter as it is."""

    def __init__(self, p: Tensor) -> None:
        self.pieces = [p]

    def enter(self, during: States, states: States) -> None:
        (p,) = self.pieces
        if p in states:
            during[p] = states[p]

    def leave(self, during: States, states: States) -> bool:
        (p,) = self.pieces
        if p not in during or (p in states and states[p] is during[p]):
            return False
        states[p] = during[p]
        return True


class Joined(Part):
    """Several parameters, with equal scalars in their states, as one flat tensor.

    Weights and gradients that are not adjacent are copied there, and weights back. State moves there for good; each
    parameter keeps views of it, of scalars too: those of all parameters are one tensor.
    """

    def __init__(self, params: Sequence[Tensor], states: States) -> None:
        self._params, self._owns = list(params), [states.get(p, {}) for p in params]
        self._apart: list[Tensor] = []  # the parameters' own memory, where they are not adjacent
        self._weights: list[Tensor] = []  # copies of it
        if are_adjacent(params):
            weight = flat(params[0], sum(p.numel() for p in params))
        else:
            weight = empty_flat(params)
            self._weights = views(weight, params)
            self._apart = [flat(p, p.numel()) for p in params]
        self.pieces = [weight]
        self._adjacent: list[Tensor] = []  # gradients, of which `_grad` is a view
        self._grad: Tensor | None = None
        self._grads: list[Tensor] = []  # copies, where they are not adjacent
        self._scalars: dict[str, tuple[Tensor, int]] = {}  # those of all parameters, and the version that is known
        self._state: Own = {key: self._together(key, value) for key, value in self._owns[0].items()}

    def _together(self, key: str, first: Any) -> Any:
        """The state of the flat tensor."""
        if not isinstance(first, Tensor):
            return first
        theirs = [own[key] for own in self._owns]
        if first.dim() == 0:
            # copies of a state share memory, but not a version: a write to one of them would not be seen
            one = first._base is not None and all(x._base is first._base for x in theirs) and are_adjacent(theirs)
            joined = flat(first, len(theirs)) if one else self._spread(key, torch.stack(theirs))
            self._scalars[key] = joined, joined._version
            return first.clone()
        laid_out = all(same_layout(x, p) for x, p in zip(theirs, self._params, strict=True))
        if laid_out and are_adjacent(theirs):
            return flat(first, self.pieces[0].numel())
        joined = empty_flat(theirs)
        torch._foreach_copy_(self._hand_out(key, joined), theirs)
        return joined

    def _hand_out(self, key: str, joined: Tensor) -> list[Tensor]:
        """Give every parameter its view of `joined` as its state."""
        parts = views(joined, self._params)
        for own, part in zip(self._owns, parts, strict=True):
            own[key] = part
        return parts

    def _spread(self, key: str, joined: Tensor) -> Tensor:
        """Give every parameter its element of `joined` as its scalar."""
        for own, part in zip(self._owns, joined.unbind(), strict=True):
            own[key] = part
        return joined

    def holds(self) -> bool:
        """Whether scalars are still equal; looks at them only if somebody else has written to them."""
        for key, (joined, version) in self._scalars.items():
            if joined._version != version:
                if not bool((joined == joined[0]).all()):
                    return False
                self._state[key].copy_(joined[0])
                self._scalars[key] = joined, joined._version
        return True

    def enter(self, during: States, states: States) -> None:
        (weight,) = self.pieces
        if self._apart:
            torch.cat(self._apart, out=weight)
        weight.grad = self._joined_grads()
        during[weight] = dict(self._state)

    def _joined_grads(self) -> Tensor:
        grads = [p.grad for p in self._params if p.grad is not None]
        if self._adjacent and all(x is y for x, y in zip(grads, self._adjacent, strict=True)):
            assert self._grad is not None
            return self._grad
        self._adjacent, self._grad = [], None
        length = self.pieces[0].numel()
        if are_adjacent(grads) and all(same_layout(g, p) for g, p in zip(grads, self._params, strict=True)):
            self._adjacent, self._grad = grads, flat(grads[0], length)
            return self._grad
        if not self._grads:
            self._grads = views(empty_flat(self._params), self._params)
        torch._foreach_copy_(self._grads, grads)
        return flat(self._grads[0], length)

    def leave(self, during: States, states: States) -> bool:
        (weight,) = self.pieces
        weight.grad = None
        if self._weights:
            torch._foreach_copy_(self._params, self._weights)
        else:
            torch.autograd.graph.increment_version(self._params)
        now = during.pop(weight)
        anew = _replaced(now, self._state)
        for own in self._owns if anew else ():
            own.clear()
        for key, value in now.items():
            self._give(key, value, anew)
        if anew:
            states.update(zip(self._params, self._owns, strict=True))
        self._state = now
        return anew

    def _give(self, key: str, value: Any, anew: bool) -> None:
        """Bring the state of the flat tensor to the parameters."""
        if not isinstance(value, Tensor):
            for own in self._owns:
                own[key] = value
        elif value.dim() == 0:
            if anew:
                joined = self._spread(key, value.detach().repeat(len(self._params)))
            else:
                joined = self._scalars[key][0].copy_(value)
            self._scalars[key] = joined, joined._version
        elif anew:
            self._hand_out(key, value)


class Cut(Part):
    """One parameter cut into pieces of `length` elements, which stay in a processor's cache for all of an update."""

    def __init__(self, p: Tensor, states: States, length: int) -> None:
        self._p, self._own, self._length = p, states.get(p, {}), length
        self.pieces = self._cut(p)
        self._states: list[Own] = [{} for _ in self.pieces]
        self._scalars: dict[str, Tensor] = {}  # of all pieces
        for key, value in self._own.items():
            self._hand_out(key, value)

    def _cut(self, x: Tensor) -> list[Tensor]:
        return list(flat(x, self._p.numel()).split(self._length))

    def _hand_out(self, key: str, value: Any) -> None:
        """Give the pieces theirs of the parameter's state."""
        theirs: Sequence[Any] = [value] * len(self.pieces)
        if isinstance(value, Tensor) and value.dim():
            theirs = self._cut(value)
        elif isinstance(value, Tensor):
            self._scalars[key] = value.detach().repeat(len(self.pieces))
            theirs = self._scalars[key].unbind()
        for state, part in zip(self._states, theirs, strict=True):
            state[key] = part

    def enter(self, during: States, states: States) -> None:
        grad = self._p.grad
        assert grad is not None
        if not same_layout(grad, self._p):
            grad = torch.empty_like(self._p.detach()).copy_(grad)
        for key, joined in self._scalars.items():
            joined.copy_(self._own[key])
        for piece, part, state in zip(self.pieces, self._cut(grad), self._states, strict=True):
            piece.grad = part
            during[piece] = dict(state)

    def leave(self, during: States, states: States) -> bool:
        for piece in self.pieces:
            piece.grad = None
        now = [during.pop(piece) for piece in self.pieces]
        anew = any(_replaced(new, old) for new, old in zip(now, self._states, strict=True))
        if anew:
            self._own.clear()
        for key in list(now[0]):
            self._give(key, [state.pop(key) if anew else state[key] for state in now], anew)
        if anew:
            states[self._p] = self._own
        return anew

    def _give(self, key: str, theirs: Sequence[Any], anew: bool) -> None:
        """Bring the pieces' state to the parameter."""
        first = theirs[0]
        if not isinstance(first, Tensor):
            self._own[key] = first
        elif first.dim() == 0:
            if anew:
                self._own[key] = first.detach().clone()
            else:
                self._own[key].copy_(first)
        elif anew:
            (self._own[key],) = views(torch.cat(list(theirs)), [self._p])


def _replaced(now: Own, before: Own) -> bool:
    """Whether there are other tensors in a state, or other keys."""
    same = now.keys() == before.keys()
    return not same or any(isinstance(x, Tensor) and x is not before[key] for key, x in now.items())
