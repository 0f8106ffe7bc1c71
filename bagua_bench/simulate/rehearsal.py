"""Turns a cell into its program: the engine runs the algorithm on meta tensors, and all it does is recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from torch.optim import Optimizer

from algorithms.base import Algorithm
from algorithms.codecs.base import Codec
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.components import build
from bagua_bench.emulate.optimizer import IdleOptimizer
from bagua_bench.emulate.task import EmulatedTask
from bagua_bench.engine.engine import Engine
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Phase, Program, Step, Traffic, Work
from bagua_bench.peers.base import Peer
from bagua_bench.simulate.replay import Replay, Unlike
from bagua_bench.simulate.scene import Scene, read, scene_of
from bagua_bench.simulate.tape import Tape, TapeChannels, TapeComm, TapeLoop, TapePace

_DECORATED = ("add_param_group", "zero_grad")


def rehearse(cell: Cell, alike: bool = True, members: bool = True) -> Program:
    """The program of a cell whose bucket size and channels are known; see `Scene` for the options."""
    assert cell.run.channels is not None
    return replace(rehearse_scene(scene_of(cell, alike, members).key), channels=cell.run.channels)


@cache
def rehearse_scene(key: str) -> Program:
    """The program of the scene with this key, for one channel."""
    scene = read(key)
    layers = layers_of(scene.task, scene.shrink)
    component = build(scene.algo.target, scene.algo.options)
    servers, per_server = scene.servers, scene.per_server
    if isinstance(component, Peer):
        return component.program(layers, servers, per_server, scene.steps)
    try:
        kinds, steps = _ranks(scene, layers, scene.alike)
    except Unlike:
        kinds, steps = _ranks(scene, layers, alike=False)
    leader = kinds[0]
    return Program(
        steps,
        sent=tuple(rank.sent for rank in kinds),
        counts=(servers * per_server,) if len(kinds) == 1 else (servers, servers * (per_server - 1)),
        buckets=leader.buckets,
        round=leader.loop.round if leader.loop else None,
        sent_per_round=tuple(rank.loop.sent if rank.loop else {} for rank in kinds),
    )


def _ranks(scene: Scene, layers: Layers, alike: bool) -> tuple[list[_Rank], tuple[Step, ...]]:
    """A rank of every kind, after its steps, and the first one's steps: the leader's of a server, and another's."""
    with _without_compiler():
        kinds = [_Rank(scene, layers, local, alike) for local in range(min(1 + scene.members, scene.per_server))]
        steps = [rank.steps() for rank in kinds]
    return kinds, steps[0]


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep torch's compiler away, which takes two seconds to import: an optimizer's methods are decorated for it."""
    with patch.multiple(Optimizer, **{name: inspect.unwrap(getattr(Optimizer, name)) for name in _DECORATED}):
        yield


class _RehearsingEngine(Engine):
    """Records when the backward pass is over and waiting begins."""

    def __init__(self, tape: Tape, *arguments: Any, **options: Any) -> None:
        self._tape = tape
        super().__init__(*arguments, **options)

    def _backward_is_over(self) -> None:
        self._tape.add(Phase("communication"))


class _Rank:
    """One rank's engine on meta tensors. Only bytes sent in the timed steps are counted."""

    def __init__(self, scene: Scene, layers: Layers, local: int, alike: bool) -> None:
        self._run, self._tape = scene, Tape()
        self._loops: list[TapeLoop] = []
        self._comm = TapeComm.world(self._tape, scene.servers, scene.per_server, local, scene.wire)
        self._task = EmulatedTask(scene.task.batch, layers, TapePace(self._tape), "meta")
        self._model = self._task.model()
        algorithm = build(scene.algo.target, scene.algo.options)
        assert isinstance(algorithm, Algorithm)
        perform = Replay(self._tape, self._comm).perform if alike else self._perform
        with self._tape.deaf():  # what happens before the first step is free
            self._engine = _RehearsingEngine(
                self._tape,
                self._model,
                IdleOptimizer(self._model.parameters()),
                algorithm,
                self._comm,
                bucket_size=self._run.bucket_size,
                channels=1,
                overlap=self._run.overlap,
                lanes=lambda comm, number, device: TapeChannels(self._tape, comm),
                averaging=self._make_loop,
                perform=perform,
            )
        self._engine.optimizer.step = self._optimizer_step  # type: ignore[method-assign,assignment]
        self.sent: dict[str, float] = {}

    def _perform(self, piece: Callable[..., None], *arguments: object) -> None:
        with self._tape.meter():
            piece(*arguments)

    def steps(self) -> tuple[Step, ...]:
        """Take all steps, untimed ones first; return the timed ones."""
        kept, before = Codec.stand_in, self._sent_in_steps()
        Codec.stand_in = staticmethod(lambda traffic: self._tape.operation(Traffic(traffic)))
        try:
            done: list[Step] = []
            for number in range(self._run.untimed + self._run.steps):
                if number == self._run.untimed:
                    before = self._sent_in_steps()
                done.append(self._step())
        finally:
            Codec.stand_in = kept
        after = self._sent_in_steps()
        self.sent = {key: (after[key] - before[key]) / self._run.steps for key in after}
        return tuple(done[self._run.untimed :])

    @property
    def buckets(self) -> int:
        return len(self._engine.buckets)

    @property
    def loop(self) -> TapeLoop | None:
        """The averaging loop of an algorithm that runs ASYNC."""
        return self._loops[0] if self._loops else None

    def _sent_in_steps(self) -> dict[str, float]:
        extra = self.loop.sent if self.loop else {}
        return {key: value - extra.get(key, 0.0) for key, value in self._engine.sent().items()}

    def _make_loop(self, *arguments: Any) -> TapeLoop:
        self._loops.append(TapeLoop(self._tape, *arguments))
        return self._loops[0]

    def _step(self) -> Step:
        tape, engine = self._tape, self._engine
        for k in range(self._run.accumulate):
            last = k == self._run.accumulate - 1
            tape.add(Phase("forward"))
            with nullcontext() if last else engine.no_sync():
                self._model().backward()
        for phase, work in (
            ("communication", engine.synchronize),
            ("optimizer", engine.optimize),
            ("communication", engine.finish_step),
        ):
            tape.add(Phase(phase))
            work()
        return tape.cut()

    def _optimizer_step(self, closure: object = None) -> None:
        self._tape.add(Work("optimizer", 1.0))
