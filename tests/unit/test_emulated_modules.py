"""The modules of an emulated model, and its optimizer: what systems hook or replace is there, as in a task's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bagua_bench.emulate.emulation import Emulation
from bagua_bench.emulate.model import EmulatedModel
from bagua_bench.emulate.pace import Sleeper
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layer, Layers
from bagua_bench.peers.fsdp import units
from tests.catalogue import resolved

LAYERS = Layers(
    task="small",
    scale="tiny",
    params=(("first.weight", (3,)), ("list.0.a.weight", (2,)), ("list.0.1.weight", (2,)), ("list.1.weight", (2,))),
    layers=tuple(Layer(1, (position,)) for position in range(4)),
    optimizer="SGD",
    optimizer_bytes=12,
    samples_per_epoch=10,
)


class Work:
    """A pace that counts pieces of work."""

    done = 0

    def begin(self, phase: str) -> None: ...

    def work(self, phase: str, share: float) -> None:
        self.done += 1


def test_elements_of_a_list_are_called_around_their_layers() -> None:
    work = Work()
    model = EmulatedModel(LAYERS, work)
    seen: list[tuple[str, int]] = []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: seen.append((name, work.done)))
    model().backward()
    assert seen == [("", 0), ("list.0", 1), ("list.1", 3)]


def test_a_parameter_that_is_replaced_gets_the_gradient() -> None:
    model = EmulatedModel(LAYERS, Work())
    model().backward()
    other = nn.Parameter(torch.ones(2))
    model.get_submodule("list.1").register_parameter("weight", other)
    model().backward()
    assert other.grad is not None and other.grad.shape == (2,)


def test_units_are_the_outermost_elements_of_lists_that_hold_parameters() -> None:
    model = EmulatedModel(LAYERS, Work())
    assert units(model) == [model.get_submodule("list.0"), model.get_submodule("list.1")]
    nested = nn.ModuleList([nn.ModuleList([nn.Linear(1, 1)]), nn.Sequential(nn.Linear(1, 1)), nn.ReLU()])
    assert units(nn.ModuleDict({"inner": nested})) == [nested[0][0], nested[1]]  # type: ignore[index]


class Holder(Trainer):
    """A trainer whose optimizer holds only some of the parameters."""

    def __init__(self, model: nn.Module, held: list[nn.Parameter]) -> None:
        self.model, self.optimizer = model, torch.optim.SGD(held, lr=0.1)

    synchronize = optimize = restart = sent = close = lambda self: None  # type: ignore[assignment]


def test_an_optimizer_that_holds_a_part_sleeps_for_that_part_and_calls_its_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    called: list[str] = []
    monkeypatch.setattr(Sleeper, "spend", lambda self, seconds: slept.append(seconds))
    emulation = Emulation(resolved("mode=emulate", "task=vgg16"), 0)
    model = EmulatedModel(LAYERS, Work())
    params: Any = list(model.parameters())
    for held in (params, params[1:]):
        trainer = Holder(model, held)
        trainer.optimizer.register_step_pre_hook(lambda *_: called.append("before"))
        trainer.optimizer.register_step_post_hook(lambda *_: called.append("after"))
        with emulation.attached(trainer):
            trainer.optimizer.step()
    assert slept[1] / slept[0] == pytest.approx(6 / 9)
    assert called == ["before", "after"] * 2
