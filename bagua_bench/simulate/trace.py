"""From a cell to its program: the engine runs the algorithm on meta tensors and everything it does is written down."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from algorithms.base import Algorithm
from algorithms.codecs.base import Codec
from bagua_bench import facts, plain
from bagua_bench.cell import AlgoPart, Cell, TaskPart
from bagua_bench.emulate.layers import Layers, layers_of
from bagua_bench.emulate.optimizer import IdleOptimizer
from bagua_bench.emulate.task import EmulatedTask
from bagua_bench.peers.base import Peer
from bagua_bench.simulate.program import Phase, Program, Step, Traffic, Work
from bagua_bench.simulate.tape import Tape, TapeComm, TapeLane, TapeLoop, TapePace
from bagua_bench.training.build import build
from bagua_bench.training.engine import Engine


@dataclass(frozen=True)
class _Traced:
    """What of a cell a program depends on."""

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


def trace(cell: Cell) -> Program:
    """The program of a cell; of the network and of times it is independent, and remembered."""
    run, cluster = cell.run, cell.cluster
    traced = _Traced(
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
    )
    return _trace(json.dumps(plain.dump(traced), sort_keys=True))


@cache
def _trace(identity: str) -> Program:
    traced = plain.load(_Traced, json.loads(identity))
    layers = layers_of(traced.task, traced.shrink)
    component = build(traced.algo.target, traced.algo.options)
    servers, per_server = traced.servers, traced.per_server
    if isinstance(component, Peer):
        return component.program(layers, servers, per_server, traced.steps + traced.untimed)
    leader = _Rank(traced, layers, 0)
    steps = leader.steps()
    kinds, counts = [leader], [servers * per_server]
    if per_server > 1:
        kinds.append(_Rank(traced, layers, 1))
        kinds[1].steps()
        counts = [servers, servers * (per_server - 1)]
    return Program(
        steps,
        sent=tuple(rank.sent for rank in kinds),
        counts=tuple(counts),
        round=leader.loop.round if leader.loop else None,
        sent_per_round=tuple(rank.loop.sent if rank.loop else {} for rank in kinds),
    )


class _TracedEngine(Engine):
    """Writes down when the backward pass is over and waiting begins."""

    def __init__(self, tape: Tape, *arguments: Any, **options: Any) -> None:
        self._tape = tape
        super().__init__(*arguments, **options)

    def _backward_is_over(self) -> None:
        self._tape.add(Phase("communication"))


class _Rank:
    """One rank's engine on meta tensors. What it did not send by the timed steps is not counted."""

    def __init__(self, traced: _Traced, layers: Layers, local: int) -> None:
        self._run, self._tape = traced, Tape()
        self._loops: list[TapeLoop] = []
        self._comm = TapeComm.world(self._tape, traced.servers, traced.per_server, local)
        self._task = EmulatedTask(traced.task.batch, layers, TapePace(self._tape), "meta")
        self._model = self._task.model()
        algorithm = build(traced.algo.target, traced.algo.options)
        assert isinstance(algorithm, Algorithm)
        with self._tape.deaf():  # what happens before the first step is free
            self._engine = _TracedEngine(
                self._tape,
                self._model,
                IdleOptimizer(self._model.parameters()),
                algorithm,
                self._comm,
                bucket_size=self._run.bucket_size,
                overlap=self._run.overlap,
                lane=partial(TapeLane, self._tape),
                free=self._make_loop,
                arithmetic=self._tape.meter,
            )
        self._engine.optimizer.step = self._optimizer_step  # type: ignore[method-assign,assignment]
        self.sent: dict[str, float] = {}

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
    def loop(self) -> TapeLoop | None:
        """The averaging loop of an algorithm that runs FREE."""
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
            ("communication", engine.publish),
        ):
            tape.add(Phase(phase))
            work()
        return tape.cut()

    def _optimizer_step(self, closure: object = None) -> None:
        self._tape.add(Work("optimizer", 1.0))
