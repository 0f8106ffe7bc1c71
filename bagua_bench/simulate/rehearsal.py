"""Turns a cell into its program: the engine runs the algorithm on meta tensors, and all it does is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from algorithms.base import Algorithm
from algorithms.codecs.base import Codec
from bagua_bench.configuration import facts, plain
from bagua_bench.configuration.cell import AlgoPart, Cell, TaskPart
from bagua_bench.configuration.components import build
from bagua_bench.emulate.optimizer import IdleOptimizer
from bagua_bench.emulate.task import EmulatedTask
from bagua_bench.engine.engine import Engine
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Phase, Program, Step, Traffic, Work
from bagua_bench.peers.base import Peer
from bagua_bench.simulate.replay import Replay, Unlike
from bagua_bench.simulate.tape import Tape, TapeChannels, TapeComm, TapeLoop, TapePace


@dataclass(frozen=True)
class _Rehearsed:
    """The parts of a cell that its program depends on."""

    task: TaskPart
    algo: AlgoPart
    servers: int
    per_server: int
    shrink: float
    steps: int
    untimed: int
    accumulate: int
    overlap: bool
    bucket_size: int
    alike: bool


def rehearse(cell: Cell, alike: bool = True) -> Program:
    """The program of a cell whose bucket size and channels are known, cached: it depends on no network and no times.

    alike: rehearse one bucket of every kind, unless the algorithm treats buckets of a kind differently.
    """
    run, cluster = cell.run, cell.cluster
    assert run.bucket_size is not None and run.channels is not None
    rehearsed = _Rehearsed(
        task=cell.task,
        algo=cell.algo,
        servers=cluster.servers,
        per_server=cluster.ranks_per_server,
        shrink=cell.shrink,
        steps=facts.algorithm(cell.algo).whole(run.steps),
        untimed=run.untimed,
        accumulate=run.accumulate,
        overlap=run.overlap,
        bucket_size=run.bucket_size,
        alike=alike,
    )
    return replace(_rehearsed(json.dumps(plain.dump(rehearsed), sort_keys=True)), channels=run.channels)


@cache
def _rehearsed(identity: str) -> Program:
    rehearsed = plain.load(_Rehearsed, json.loads(identity))
    layers = layers_of(rehearsed.task, rehearsed.shrink)
    component = build(rehearsed.algo.target, rehearsed.algo.options)
    servers, per_server = rehearsed.servers, rehearsed.per_server
    if isinstance(component, Peer):
        return component.program(layers, servers, per_server, rehearsed.steps + rehearsed.untimed)
    try:
        kinds, steps = _ranks(rehearsed, layers, rehearsed.alike)
    except Unlike:
        kinds, steps = _ranks(rehearsed, layers, alike=False)
    leader = kinds[0]
    return Program(
        steps,
        sent=tuple(rank.sent for rank in kinds),
        counts=(servers * per_server,) if per_server == 1 else (servers, servers * (per_server - 1)),
        buckets=leader.buckets,
        round=leader.loop.round if leader.loop else None,
        sent_per_round=tuple(rank.loop.sent if rank.loop else {} for rank in kinds),
    )


def _ranks(rehearsed: _Rehearsed, layers: Layers, alike: bool) -> tuple[list[_Rank], tuple[Step, ...]]:
    """A rank of every kind, after its steps, and the first one's steps: the leader's of a server, and another's."""
    kinds = [_Rank(rehearsed, layers, local, alike) for local in range(min(2, rehearsed.per_server))]
    steps = [rank.steps() for rank in kinds]
    return kinds, steps[0]


class _RehearsingEngine(Engine):
    """Records when the backward pass is over and waiting begins."""

    def __init__(self, tape: Tape, *arguments: Any, **options: Any) -> None:
        self._tape = tape
        super().__init__(*arguments, **options)

    def _backward_is_over(self) -> None:
        self._tape.add(Phase("communication"))


class _Rank:
    """One rank's engine on meta tensors. Only bytes sent in the timed steps are counted."""

    def __init__(self, rehearsed: _Rehearsed, layers: Layers, local: int, alike: bool) -> None:
        self._run, self._tape = rehearsed, Tape()
        self._loops: list[TapeLoop] = []
        self._comm = TapeComm.world(self._tape, rehearsed.servers, rehearsed.per_server, local)
        self._task = EmulatedTask(rehearsed.task.batch, layers, TapePace(self._tape), "meta")
        self._model = self._task.model()
        algorithm = build(rehearsed.algo.target, rehearsed.algo.options)
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
