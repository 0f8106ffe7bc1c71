"""A model's buffers (the running statistics of batch norm) between ranks."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from algorithms.base import Comm, Op

_ALIGNMENT = 16  # bytes; a flat tensor holds buffers of several types


class Buffers:
    """Keeps buffers alike: all ranks get rank 0's (`average=False`), or floating-point ones their mean.

    `take` copies them, `communicate` works on the copy beside computation, `put` brings the result back: as it is, or,
    where they are averaged, as a change, so that what a forward pass did meanwhile stays.
    """

    def __init__(self, model: nn.Module, average: bool) -> None:
        self._average = average
        self._slots = [
            (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, b in model.named_buffers()
            if b.numel() and b.layout is torch.strided and (b.is_floating_point() or not average)
        ]
        groups: dict[object, list[int]] = defaultdict(list)  # one message per type to average, one for all to send
        for index, b in enumerate(self._now()):
            groups[(b.device, b.dtype) if average else b.device].append(index)
        self._flats: list[Tensor] = []
        self._copies = self._now()
        for members in groups.values():
            self._lay_out(members)
        self._taken = [flat.clone() for flat in self._flats] if average else []

    def __bool__(self) -> bool:
        return bool(self._slots)

    @torch.no_grad()
    def take(self) -> None:
        """Copy the buffers as they are now."""
        torch._foreach_copy_(self._copies, self._now())
        for taken, flat in zip(self._taken, self._flats, strict=bool(self._taken)):
            taken.copy_(flat)

    def communicate(self, comm: Comm) -> None:
        """Collective: average the copies, or replace them by rank 0's."""
        for flat in self._flats:
            if self._average:
                comm.all_reduce(flat, Op.AVG)
            else:
                comm.broadcast(flat, 0)

    @torch.no_grad()
    def put(self) -> None:
        """Bring what was communicated into the model."""
        if self._average:
            for flat, taken in zip(self._flats, self._taken, strict=True):
                flat.sub_(taken)
            torch._foreach_add_(self._now(), self._copies)
        else:
            torch._foreach_copy_(self._now(), self._copies)

    def _now(self) -> list[Tensor]:
        """The buffers, which modules may have replaced."""
        found = [module._buffers[key] for module, key in self._slots]
        return [b for b in found if b is not None]

    def _lay_out(self, members: list[int]) -> None:
        """Make room for copies of some buffers in one flat tensor: of their type, or of bytes."""
        buffers = [self._copies[i] for i in members]
        places, end = [], 0
        for b in buffers:
            places.append(end)
            end += -(-b.nbytes // _ALIGNMENT) * _ALIGNMENT
        flat = torch.zeros(end, dtype=torch.uint8, device=buffers[0].device)
        self._flats.append(flat.view(buffers[0].dtype) if self._average else flat)
        for index, b, place in zip(members, buffers, places, strict=True):
            self._copies[index] = flat[place : place + b.nbytes].view(b.dtype).view(b.shape)
