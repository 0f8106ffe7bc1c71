"""Ranks cells by the simulated time of a step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context

from bagua_bench.advise import traces
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.compute import Compute, compute_of, speed_classes
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Program
from bagua_bench.machine.scale import scale_model
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.run import mean_step, with_rounds

_FEW, _FEW_KNOWN = 20, 100
"""Cells that are ranked in this process, as others would take longer to start: any, and with programs that are kept."""


@dataclass(frozen=True)
class Row:
    """What is simulated of a cell, and what its algorithm declares.

    between: what the algorithm connects. steps: so many were simulated. epoch_seconds: 0 if the task does not say how
    many samples there are. round_seconds, staleness_steps: of averages beside the steps; NaN where there are none.
    times_ddp, why: what a comparison adds, see `answer.answer`.
    """

    cell: Cell
    algorithm: str
    same_update: bool
    steps: int
    warm_up: float
    note: str
    between: str
    transport: str
    bucket: str
    channels: str
    step_seconds: float
    epoch_seconds: float
    round_seconds: float
    staleness_steps: float
    times_ddp: float = math.nan
    why: str = ""


def advise(cells: Sequence[Cell], workers: int = 1) -> list[Row]:
    """One row per cell, fastest first.

    workers: processes to share the work; 0: one per core where there is enough of it.
    """
    return sorted(_rows(cells, workers), key=lambda row: row.step_seconds)


def each_first(rows: Iterable[Row], of: Callable[[Row], Hashable] = lambda row: row.algorithm) -> list[Row]:
    """The first row of every algorithm, or of whatever `of` tells apart."""
    found: dict[Hashable, Row] = {}
    for row in rows:
        found.setdefault(of(row), row)
    return list(found.values())


def _rows(cells: Sequence[Cell], workers: int) -> list[Row]:
    settings = [Setting(cell) for cell in cells]
    known = workers != 1 and all(traces.is_known(key) for key in {setting.key for setting in settings})
    if not workers:
        workers = len(os.sched_getaffinity(0)) if len(cells) > (_FEW_KNOWN if known else _FEW) else 1
    if workers == 1:
        return [_row(setting) for setting in settings]
    if not known:
        from bagua_bench.simulate import rehearsal  # noqa: F401  torch once, before the forks

    parts: dict[traces.Key, list[Setting]] = {}
    for setting in settings:  # cells with the same buckets share a rehearsal
        parts.setdefault(setting.key, []).append(setting)
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        rows = [row for rows in pool.map(_rows_of, parts.values()) for row in rows]
    traces.tidy()
    return rows


def _rows_of(settings: Sequence[Setting]) -> list[Row]:
    return [_row(setting) for setting in settings]


class Setting:
    """A cell with all that its simulation needs."""

    def __init__(self, cell: Cell) -> None:
        self.asked = cell
        scaled = scale_model(cell)
        self.layers: Layers = layers_of(scaled.task, scaled.shrink)
        self.cluster: Cluster = cluster_of(scaled)
        self.cell = settled(scaled, self.cluster)
        """The scale model, with the bucket size and the channels that the engine would choose."""
        self.compute: Compute = compute_of(self.cell, self.layers)
        self.factors = [*speed_classes(cell.cluster)]

    @cached_property
    def key(self) -> traces.Key:
        """What its program depends on."""
        return traces.key_of(self.cell)

    @cached_property
    def program(self) -> Program:
        """What a rank does in a step."""
        assert self.cell.run.channels is not None
        program = traces.program_of(self.key, self.cell.run.channels)
        if program.round is None:
            return program
        return with_rounds(program, self.cluster, self.compute, facts.algorithm(self.cell.algo).rounds)


def _row(setting: Setting) -> Row:
    cell = setting.asked
    declared, layout, run = facts.algorithm(cell.algo), setting.cluster.layout, setting.cell.run
    timing = Clock(setting.cluster, setting.compute, setting.factors).run(setting.program)
    seconds, in_rounds = mean_step(timing) * cell.haste, setting.program.round is not None
    samples = cell.task.batch * cell.run.accumulate * layout.ranks
    by_server = declared.by_server and layout.per_server > 1 and layout.servers > 1
    return Row(
        cell=cell,
        algorithm=cell.algo.name,
        same_update=declared.same_update,
        steps=len(timing.steps),
        warm_up=declared.warm_up_share,
        note=declared.note,
        between="servers" if by_server else "ranks",
        transport=cell.transport.name,
        bucket=declared.buckets or f"{(run.bucket_size or 0) * setting.cell.shrink / 2**20:.3g} MiB",
        channels="" if declared.buckets else f"{run.channels}",
        step_seconds=seconds,
        epoch_seconds=seconds * setting.layers.samples_per_epoch / samples,
        round_seconds=timing.round_seconds * cell.haste if in_rounds else math.nan,
        staleness_steps=(timing.staleness if timing.rounds else math.inf) if in_rounds else math.nan,
    )
