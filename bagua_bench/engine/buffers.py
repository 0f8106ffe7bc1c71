"""A model's buffers (the running statistics of batch norm) between ranks."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from algorithms.base import Comm, Op
from bagua_bench.fused.memory import is_dense

_ALIGNMENT = 16  # bytes; a flat tensor holds buffers of several types
_AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Buffers:
    """Keeps buffers alike: all ranks get rank 0's (`average=False`), or the mean of floating-point ones.

    `take` copies them, `communicate` works on the copy beside computation, `put` brings the result back: on ranks
    other than 0 as it is; averages on all ranks, as a change, so that the updates of a forward pass meanwhile stay.
    Values that are not finite in a mean (masks of -inf) stay as they are. Buffers whose elements share memory are
    left alone.
    """

    def __init__(self, model: nn.Module, average: bool) -> None:
        self._model, self._average = model, average
        self.look()

    def __bool__(self) -> bool:
        return bool(self._slots)

    @torch.no_grad()
    def take(self) -> None:
        """Copy the buffers as they are now. RuntimeError that names a buffer whose shape or type has changed."""
        now = self._now()
        for name, b, copy in zip(self._names, now, self._copies, strict=True):
            if b.shape != copy.shape or b.dtype != copy.dtype:
                raise RuntimeError(
                    f"{name}: this buffer was {tuple(copy.shape)} {copy.dtype} and is {tuple(b.shape)} {b.dtype}; "
                    "pass broadcast_buffers=False to Engine if buffers change"
                )
        torch._foreach_copy_(self._copies, now)
        for taken, flat in zip(self._taken, self._flats, strict=bool(self._taken)):
            taken.copy_(flat)

    def communicate(self, comm: Comm) -> None:
        """Collective: average the copies, or replace them by rank 0's."""
        self._is_source = comm.rank == 0 and not self._average
        for flat in self._flats:
            if self._average:
                comm.all_reduce(flat, Op.AVG)
            else:
                comm.broadcast(flat, 0)

    @torch.no_grad()
    def put(self) -> None:
        """Bring the result of `communicate` into the model."""
        if self._average:
            for flat, taken in zip(self._flats, self._taken, strict=True):
                flat.sub_(taken).nan_to_num_(0.0, 0.0, 0.0)
            torch._foreach_add_(self._now(), self._copies)
        elif not self._is_source:
            torch._foreach_copy_(self._now(), self._copies)

    def look(self) -> None:
        """Look up the buffers that the model has."""
        named = [(name, b) for name, b in self._model.named_buffers() if self._is_kept(b)]
        self._names = [name for name, _ in named]
        self._slots = [
            (self._model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in self._names
        ]
        groups: dict[object, list[int]] = defaultdict(list)  # one message per type to average, one for all to send
        for index, (_, b) in enumerate(named):
            groups[(b.device, b.dtype) if self._average else b.device].append(index)
        self._flats: list[Tensor] = []
        self._copies = self._now()
        for members in groups.values():
            self._make_room(members)
        self._taken = [flat.clone() for flat in self._flats] if self._average else []

    def _is_kept(self, b: Tensor) -> bool:
        plain = bool(b.numel()) and b.layout is torch.strided and is_dense(b)
        return plain and (b.dtype in _AVERAGED or not self._average)

    def _now(self) -> list[Tensor]:
        """The buffers, which modules may have replaced."""
        found = [module._buffers[key] for module, key in self._slots]
        return [b for b in found if b is not None]

    def _make_room(self, members: list[int]) -> None:
        """Put the copies of some buffers into one flat tensor: of their type, or of bytes."""
        buffers = [self._copies[i] for i in members]
        places, end = [], 0
        for b in buffers:
            places.append(end)
            end += -(-b.nbytes // _ALIGNMENT) * _ALIGNMENT
        flat = torch.zeros(end, dtype=torch.uint8, device=buffers[0].device)
        self._flats.append(flat.view(buffers[0].dtype) if self._average else flat)
        for index, b, place in zip(members, buffers, places, strict=True):
            self._copies[index] = flat[place : place + b.nbytes].view(b.dtype).view(b.shape)
