"""How much memory a rank takes, beyond the process with its imports."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine.engine import Engine
from bagua_bench.overhead.rivals import Supply, rival
from bagua_bench.worker import memory

_STEPS = 4  # DDP makes its buckets anew after the first
_CPU = torch.device("cpu")


def taken(cell: Cell, tiny: Cell, comm: TorchComm) -> dict[str, int]:
    """Bytes of this rank while it trains a cell: `peak` beyond the process, and what the tensors account for.

    tiny: a smaller model, trained before, so that the process has loaded all that it needs. `weights`, `gradients`
    and `optimizer` are those of the model, `bucket` is the engine's largest one, 0 of a peer. Collective.
    """
    first = Supply(tiny, comm.rank, comm.size)
    with rival(tiny, first, first.model(), comm) as other:
        other.step()
    supply, found = Supply(cell, comm.rank, comm.size), dict[str, int]()
    with _beyond(supply, found) as fresh, rival(cell, supply, fresh, comm) as one:
        memory.trim()  # the parameters have moved into buckets
        for _ in range(_STEPS):
            one.step()
        model, optimizer = one.trainer.model, one.trainer.optimizer
        found |= _of_tensors(model.parameters(), optimizer.state.values())
        buckets = one.trainer.buckets if isinstance(one.trainer, Engine) else []
        found["bucket"] = max((bucket.weight.nbytes for bucket in buckets), default=0)
    return found


def alone(cell: Cell, tiny: Cell) -> dict[str, int]:
    """Bytes of `weights` and of `activations`: what the forward pass of plain torch makes.

    What the backward pass needs besides, such as a gradient that is then added to another, is not among them.
    """
    _forward_and_backward(Supply(tiny, 0, 1), 1)
    return _forward_and_backward(Supply(cell, 0, 1), _STEPS)


def _forward_and_backward(supply: Supply, steps: int) -> dict[str, int]:
    model, activations = supply.model(), 0
    for _ in range(steps):  # the first loads code
        batch = next(supply.batches)
        before = _settled()
        memory.reset_peak(_CPU)
        loss = supply.task.loss(model, batch)
        activations = memory.peak(_CPU) - before
        loss.backward()
    return {"weights": sum(p.nbytes for p in model.parameters()), "activations": activations}


@contextmanager
def _beyond(supply: Supply, found: dict[str, int]) -> Iterator[nn.Module]:
    """A context with a new model, whose `peak` beyond the memory before that it adds to `found`.

    Making a model may take more memory than the model; that does not count.
    """
    before = _settled()
    model = supply.model()
    memory.trim()
    memory.reset_peak(_CPU)
    yield model
    found["peak"] = memory.peak(_CPU) - before


def _settled() -> int:
    """Resident bytes, without what only waits to be freed."""
    gc.collect()
    memory.trim()
    return memory.resident()


def _of_tensors(params: Iterable[Tensor], states: Iterable[dict[str, Any]]) -> dict[str, int]:
    weights = sum(p.nbytes for p in params)
    kept = sum(x.nbytes for state in states for x in state.values() if isinstance(x, Tensor))
    return {"weights": weights, "gradients": weights, "optimizer": kept}
