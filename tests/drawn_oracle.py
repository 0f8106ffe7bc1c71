"""Computes a drawn case for all ranks in one process, with plain torch and the algorithm's formula."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR

from algorithms.topology import shift_one
from tests.drawn import AVERAGE_GRADIENTS, Case, Drawn, Sliced, optimizer_of, passes, values


def oracle(case: Case) -> list[list[dict[str, Tensor]]]:
    """Like `engine_run`, for all ranks: [rank][step]."""
    models = [_dense(Drawn(case.layers)) for _ in range(case.ranks)]
    optimizers = [optimizer_of(case, model) for model in models]
    schedules = [StepLR(o, 2, 0.5) for o in optimizers if case.schedule]
    seen: list[list[dict[str, Tensor]]] = [[] for _ in models]
    for number, step in enumerate(case.steps):
        if step.thaw:
            for model in models:
                model.requires_grad_(True)
        before = [[b.clone() for b in _buffers(model)] for model in models]
        for rank, model in enumerate(models):
            if step.gives_up != rank:
                passes(model, case, rank, number)
        averaged = _averaged_weights(case, number, models)
        _mix_gradients(case, models)
        _mix_buffers(case, number, models, before)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if averaged is not None:
                with torch.no_grad():
                    for p, mean in zip(_trained(model), averaged[rank], strict=True):
                        p.copy_(mean)
            if step.clip:
                clip_grad_norm_(model.parameters(), 0.1)
            if step.skip:
                model.zero_grad()
            if case.max_norm is not None:
                clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
        if case.algorithm == "periodic average" and number % 2:
            _average([_trained(model) for model in models])
            _move_buffers(models, [[b.clone() for b in _buffers(model)] for model in models])
        for schedule in schedules:
            schedule.step()
        for rank, model in enumerate(models):
            seen[rank].append(values(model))
    return seen


def _dense(model: Drawn) -> Drawn:
    """Make slices contiguous, because products with slices are rounded differently."""
    for part in model.parts:
        if isinstance(part, Sliced):
            part.weight.data = part.weight.data.contiguous()
    return model


def _trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _buffers(model: nn.Module) -> list[Tensor]:
    return [b for b in model.buffers() if b.is_floating_point()]


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors) / len(tensors)


@torch.no_grad()
def _average(everyone: Sequence[Sequence[Tensor]]) -> None:
    for same in zip(*everyone, strict=True):
        mean = _mean(same)
        for tensor in same:
            tensor.copy_(mean)


@torch.no_grad()
def _averaged_weights(case: Case, number: int, models: Sequence[nn.Module]) -> list[list[Tensor]] | None:
    """The averaged weights of every rank, if the algorithm averages weights alongside the passes."""
    exchange = number // 2 if case.algorithm == "pairs, every other step" else number
    weights = [_trained(model) for model in models]
    if case.algorithm == "everybody":
        return [[_mean(same) for same in zip(*weights, strict=True)] for _ in models]
    if case.algorithm == "pairs" or (case.algorithm == "pairs, every other step" and number % 2 == 0):
        peers = [[*shift_one(exchange, rank, case.ranks), rank][0] for rank in range(case.ranks)]
        return [[(a + b) / 2 for a, b in zip(weights[r], weights[p], strict=True)] for r, p in enumerate(peers)]
    return None


@torch.no_grad()
def _mix_gradients(case: Case, models: Sequence[nn.Module]) -> None:
    if case.algorithm not in AVERAGE_GRADIENTS:
        return
    for same in zip(*(_trained(model) for model in models), strict=True):
        if all(p.grad is None for p in same) and case.find_unused:
            continue
        mean = _mean([torch.zeros_like(p) if p.grad is None else p.grad for p in same])
        for p in same:
            p.grad = mean.clone()


@torch.no_grad()
def _mix_buffers(case: Case, number: int, models: Sequence[nn.Module], before: list[list[Tensor]]) -> None:
    """Copy rank 0's if replicas are equal; otherwise add the mean minus the own, both from when averaging began."""
    if case.algorithm in ("all-reduce", "qadam's warm-up"):
        for model in models[1:]:
            for own, first in zip(model.buffers(), models[0].buffers(), strict=True):
                own.copy_(first)
        return
    step = case.steps[number]  # the forward hook begins averaging, unless weights lie elsewhere for this pass
    elsewhere = step.replace and not step.reload  # reloading brings them back
    announced = case.algorithm != "async's warm-up" and step.call == "call" and not elsewhere
    begun = before if announced else [[b.clone() for b in _buffers(model)] for model in models]
    if case.algorithm != "periodic average" and not (case.algorithm.endswith("other step") and number % 2):
        _move_buffers(models, begun)


def _move_buffers(models: Sequence[nn.Module], begun: Sequence[Sequence[Tensor]]) -> None:
    means = [_mean(same) for same in zip(*begun, strict=True)]
    for model, own in zip(models, begun, strict=True):
        for b, mean, old in zip(_buffers(model), means, own, strict=True):
            b.add_(mean - old)
