"""Models and habits drawn at random: what is trained, and the engine that trains it.

A `Case` says what is trained, by which algorithm, and what is done in each step. `engine_run` does it on one rank of a
world; `tests.drawn_oracle` does it for all ranks, one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR

from algorithms.async_model_average import AsyncModelAverage
from algorithms.base import Algorithm, Bucket, Comm, Turn, When
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.primitives import c_fp_s
from algorithms.qadam import QAdam
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine

WIDTH = 6


@dataclass(frozen=True)
class Step:
    """What happens in one step."""

    micro: int = 1  # backward passes
    call: str = "call"  # how the model is called: call, forward, eval
    clip: bool = False  # clip_grad_norm_ between backward and step
    skip: bool = False  # zero_grad between backward and step
    evaluate: bool = False
    replace: bool = False  # p.data of every parameter, before the step
    reload: bool = False  # the engine's own state, before the step
    copy: bool = False  # train a copy of the model
    thaw: bool = False
    gives_up: int | None = None  # the rank that does


@dataclass(frozen=True)
class Case:
    """What is trained."""

    algorithm: str
    ranks: int
    layers: tuple[str, ...]
    optimizer: str
    groups: bool
    schedule: bool
    max_norm: float | None
    bucket_size: int
    overlap: bool
    steps: tuple[Step, ...]

    @property
    def find_unused(self) -> bool:
        return bool({"unused", "sometimes"} & set(self.layers))


class PeriodicAverage(Algorithm):
    """The mean of all weights after every second optimizer step."""

    when, gradients, consensus = When.STEP, False, 0.75

    def turns(self, step: int) -> Sequence[Turn]:
        return () if step % 2 else (Turn(self.when),)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_fp_s(bucket.weight, comm)


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "all-reduce": GradientAllReduce,
    "qadam's warm-up": lambda: QAdam(warmup_steps=100),
    "async's warm-up": lambda: AsyncModelAverage(warmup_steps=100),
    "pairs": Decentralized,
    "pairs, every other step": lambda: Decentralized(interval=2),
    "everybody": lambda: Decentralized(peers="all"),
    "periodic average": PeriodicAverage,
}
AVERAGE_GRADIENTS = ("all-reduce", "qadam's warm-up", "async's warm-up")


class Drawn(nn.Module):
    """Layers from WIDTH to WIDTH features, of various kinds; each kind has its own trap."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self.kinds = list(kinds)
        self.scale = nn.Parameter(torch.ones(()))  # without dimensions, on the root module
        self.parts = nn.ModuleList(_part(kind) for kind in kinds)
        linear = [part for kind, part in zip(kinds, self.parts, strict=True) if kind in ("linear", "frozen", "twice")]
        for kind, part in zip(kinds, self.parts, strict=True):
            if kind == "tied" and linear:
                part.weight = linear[0].weight
        generator = torch.Generator().manual_seed(0)
        for p in self.parameters():
            if p.dim():
                p.data.copy_(torch.randn(p.shape, generator=generator) / WIDTH**0.5)
        for kind, part in zip(kinds, self.parts, strict=True):
            part.requires_grad_(kind != "frozen")

    def forward(self, x: Tensor, use: bool) -> Tensor:
        for kind, part in zip(self.kinds, self.parts, strict=True):
            if kind == "unused" or (kind == "sometimes" and not use):
                continue
            out = part(x.double()).float() if kind == "double" else part(x)
            x = torch.tanh(part(out) if kind == "twice" else out) + x
        return x.sum(1) * self.scale


class Sliced(nn.Module):
    """A layer whose weight is some columns of another tensor; it also has an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, 2 * WIDTH)[:, ::2])
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.nothing.sum()


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x.view(-1, 2, 3, 1))
        return out.reshape(x.shape)


def _part(kind: str) -> nn.Module:
    if kind == "norm":
        return nn.BatchNorm1d(WIDTH)
    special: dict[str, type[nn.Module]] = {"sliced": Sliced, "convolution": Convolution}
    if kind in special:
        return special[kind]()
    return nn.Linear(WIDTH, WIDTH, dtype=torch.float64 if kind == "double" else torch.float32)


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    params = list(model.parameters())
    groups: Any = [{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:]}] if case.groups else params
    if case.algorithm == "qadam's warm-up":
        return torch.optim.Adam(groups, lr=0.01, weight_decay=0.1, foreach=False)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, foreach=False),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, foreach=False),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False),
    }
    return kinds[case.optimizer](groups)


def batch(rank: int, step: int, micro: int) -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10_000 * rank + 10 * step + micro)) + rank


def passes(model: nn.Module, case: Case, rank: int, number: int, no_sync: Callable[[], Any] = nullcontext) -> None:
    """The forward and backward passes of one step."""
    step = case.steps[number]
    model.train(step.call != "eval")
    for micro in range(step.micro):
        with no_sync() if micro + 1 < step.micro else nullcontext():
            call = model.forward if step.call == "forward" else model
            out = call(batch(rank, number, micro), (rank + number + micro) % 2 == 0)
            (out - 1).square().mean().backward()
    model.train()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def engine_run(comm: CountedComm, case: Case) -> list[dict[str, Tensor]]:
    """The model after every step, on this rank."""
    model = Drawn(case.layers)
    optimizer = optimizer_of(case, model)
    algorithm = ALGORITHMS[case.algorithm]()
    schedule = StepLR(optimizer, 2, 0.5) if case.schedule else None
    options = {"bucket_size": case.bucket_size, "overlap": case.overlap, "max_grad_norm": case.max_norm}
    seen = []
    with Engine(model, optimizer, algorithm, comm, find_unused_parameters=case.find_unused, **options) as engine:  # type: ignore[arg-type]
        for number, step in enumerate(case.steps):
            _between(engine, model, step)
            if step.gives_up == comm.rank:
                engine.give_up()
            else:
                passes(model, case, comm.rank, number, engine.no_sync)
            if step.clip:
                clip_grad_norm_(model.parameters(), 0.1)
            if step.skip:
                model.zero_grad()
            engine.step()
            if schedule is not None:
                schedule.step()
            seen.append(values(model))
    return seen


def _between(engine: Engine, model: nn.Module, step: Step) -> None:
    """Actions between two steps that should change nothing."""
    if step.thaw:
        model.requires_grad_(True)
        engine.rebuild()
    if step.replace:
        for p in model.parameters():
            p.data = p.data.clone(memory_format=torch.preserve_format)
    if step.reload:
        engine.load_state_dict(engine.state_dict())
    if step.copy:
        copy.deepcopy(model)(batch(0, 0, 0), True).sum().backward()
    if step.evaluate:
        with engine.paused(), torch.no_grad():
            model.eval()(batch(0, 0, 0), True)
        model.train()
