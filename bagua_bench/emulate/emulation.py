"""One rank's emulation: its task, its pace, and what is real in its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from algorithms.codecs.base import Codec
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.emulate.pace import Sleeper
from bagua_bench.emulate.task import EmulatedTask
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.arithmetic import Debt, Meter, settle
from bagua_bench.machine.compute import compute_of, slow_factors
from bagua_bench.machine.loads import task_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.results.result import Reality

_NAMES = {"optimizer": "optimizer", "codec": "codecs and the algorithm's arithmetic on tensors"}


class Emulation:
    """What one rank of a resolved configuration needs to compute at another machine's speed."""

    def __init__(self, cell: Cell, rank: int) -> None:
        layers = layers_of(cell.task, cell.shrink)
        self._cell = cell
        self._compute = compute = compute_of(cell, layers)
        self._slow = slow_factors(cell.cluster).get(rank, 1.0)
        settle()  # every channel has a meter of its own
        self._debt = Debt(compute.memory_bandwidth / self._slow)
        each = self._slow / cell.run.accumulate
        self._pace = Sleeper({"forward": compute.forward * each, "backward": compute.backward * each})
        self.task = EmulatedTask(cell.task.batch, layers, self._pace, uneven=task_of(cell.task))

    def perform(self, piece: Callable[..., None], *arguments: object) -> None:
        """Call a piece of an algorithm, whose own operations on tensors take as long as on the emulated machine."""
        with Meter(self._debt, values=False) if self._cell.profile.codec == "profile" else nullcontext():
            piece(*arguments)

    @contextmanager
    def attached(self, trainer: Trainer) -> Iterator[None]:
        """A context in which optimizer and codecs take as long as on the emulated machine, where the profile says so.

        The optimizer then updates nothing and keeps no state; messages keep their size.
        """
        if self._cell.profile.optimizer == "profile":
            self._replace_step(trainer.optimizer, sum(p.numel() for p in trainer.model.parameters()))
        before = Codec.stand_in
        if self._cell.profile.codec == "profile":
            Codec.stand_in = staticmethod(self._debt)
        try:
            yield
        finally:
            Codec.stand_in = before

    def _replace_step(self, optimizer: Optimizer, elements: int) -> None:
        """Have the optimizer's step sleep for the update of those of the model's elements that it holds.

        Hooks on the step are called as ever: some systems communicate in them.
        """
        held = sum(_local(p).numel() for group in optimizer.param_groups for p in group["params"])
        seconds = self._compute.optimizer * self._slow * held / elements

        def step(optimizer: Optimizer, closure: object = None) -> None:
            self._pace.spend(seconds)

        optimizer.step = MethodType(Optimizer.profile_hook_step(step), optimizer)  # type: ignore[method-assign]

    def description(self) -> Reality:
        """What is real in the run and what is not, for its record."""
        peer = facts.algorithm(self._cell.algo).peer  # its arithmetic is its own
        origins = {
            "optimizer": self._cell.profile.optimizer,
            "codec": "measured" if peer else self._cell.profile.codec,
        }
        real = [key for key, origin in origins.items() if origin == "measured"]
        slept = [key for key, origin in origins.items() if origin == "profile"]
        compute, shrink, haste = self._compute, self._cell.shrink, self._cell.haste
        size = f"size: tensors, buckets, TCP windows and bandwidths are 1/{shrink:g} of the configuration's"
        pace = f"pace: computing, latencies and transfers took {1 / haste:g} times the time that is recorded"
        uneven = ["work: in proportion to the multiply-adds of a rank's own batches"] * self._cell.task.uneven
        scaled = [text for text, factor in ((size, shrink), (pace, haste)) if factor != 1]
        return Reality(
            real=(
                "parameter and gradient tensors, autograd hooks, buckets, the engine's schedule, the algorithm's calls",
                "every message, the transport and the network it runs over",
                *(f"{_NAMES[key]}: done and timed on this machine" for key in real),
            ),
            emulated=(
                "forward and backward: every layer sleeps its share (by multiply-adds) of the emulated machine's time",
                *uneven,
                "values: weights and gradients are zero, nothing is learned",
                *scaled,
                *(f"{_NAMES[key]}: sleeps for its memory traffic" for key in slept),
            ),
            step_seconds={"forward": compute.forward, "backward": compute.backward, "optimizer": compute.optimizer},
            step_seconds_from=compute.origin,
        )


def _local(p: Any) -> Tensor:
    """A parameter, or this rank's part of one that is divided among the ranks."""
    part: Tensor = p.to_local() if hasattr(p, "to_local") else p
    return part
