"""The parts of a cell that its program depends on. No torch import."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from bagua_bench.configuration import facts, plain
from bagua_bench.configuration.cell import AlgoPart, Cell, TaskPart


@dataclass(frozen=True)
class Scene:
    """What is rehearsed: an algorithm, a model and a layout, but no network and no times.

    alike: rehearse one bucket of every kind, unless the algorithm treats buckets of a kind differently.
    members: rehearse also a rank that is not the leader of its server, for the bytes that it sends.
    """

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
    wire: str | None
    alike: bool
    members: bool

    @property
    def key(self) -> str:
        """A text from which `read` makes an equal scene."""
        return json.dumps(plain.dump(self), sort_keys=True)


def read(key: str) -> Scene:
    """The scene with this key."""
    return plain.load(Scene, json.loads(key))


def scene_of(cell: Cell, alike: bool = True, members: bool = True) -> Scene:
    """The scene of a cell whose bucket size and channels are known."""
    run, cluster = cell.run, cell.cluster
    assert run.bucket_size is not None and run.channels is not None
    return Scene(
        task=replace(cell.task, step_seconds=None),
        algo=cell.algo,
        servers=cluster.servers,
        per_server=cluster.ranks_per_server,
        shrink=cell.shrink,
        steps=facts.algorithm(cell.algo).whole(run.steps),
        untimed=run.untimed,
        accumulate=run.accumulate,
        overlap=run.overlap,
        bucket_size=run.bucket_size,
        wire=cell.transport.wire,
        alike=alike,
        members=members,
    )
