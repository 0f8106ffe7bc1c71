"""Checks that all ranks have built the same thing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from algorithms.base import Comm, Op


def description(model: nn.Module, *more: object) -> list[str]:
    """Everything that must be the same on all ranks, a line each."""
    lines = [f"{name} {tuple(p.shape)} {_kind(p)}" for name, p in model.named_parameters()]
    lines += [f"buffer {name} {tuple(b.shape)} {b.dtype}" for name, b in model.named_buffers()]
    return lines + [str(item) for item in more]


def agree(lines: Sequence[str], comm: Comm, device: torch.device) -> None:
    """Compare the ranks' lines; collective. ValueError, the same on all ranks, that names the first difference."""
    text = "\n".join(lines).encode()
    digest = torch.tensor(list(hashlib.sha256(text).digest()), dtype=torch.uint8, device=device)
    least, most = digest.clone(), digest.clone()
    comm.all_reduce(least, Op.MIN)
    comm.all_reduce(most, Op.MAX)
    if torch.equal(least, most):
        return
    texts = _everyones(text, comm, device)
    for rank, other in enumerate(texts):
        if other != texts[0]:
            first, second = ([*t.splitlines(), "nothing"] for t in (texts[0], other))
            a, b = next(pair for pair in zip(first, second, strict=False) if pair[0] != pair[1])
            comm.barrier()  # otherwise the others would report that this rank ended first
            raise ValueError(f"model: ranks differ: rank 0 has {a}, rank {rank} has {b}")


def _everyones(text: bytes, comm: Comm, device: torch.device) -> list[str]:
    length = torch.tensor([len(text)], device=device)
    comm.all_reduce(length, Op.MAX)
    padded = torch.zeros(int(length), dtype=torch.uint8, device=device)
    padded[: len(text)] = torch.tensor(list(text), dtype=torch.uint8, device=device)
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in comm.all_gather(padded)]


def _kind(p: Tensor) -> str:
    return f"{p.dtype} strides {p.stride()} {'trainable' if p.requires_grad else 'frozen'}"
