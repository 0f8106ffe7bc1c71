"""The answer that a comparison gives: what is fastest, against what, how sure, at what cost, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bagua_bench.advise import intervals, levers, reasons
from bagua_bench.advise.assumptions import transports
from bagua_bench.advise.levers import Crossing
from bagua_bench.advise.ranking import Row, each_first
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.variants import algorithm_part
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.posterior import posterior_of

_ELEMENT = 4  # bytes of a float32
_PLAIN_TRAFFIC, _PER_MOMENT = 12, 8  # bytes of an optimizer step: SGD's; to read and write another tensor


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank, in float32."""

    weights: int
    gradients: int
    optimizer: int
    kind: str
    """Name of the optimizer."""
    state: float
    """What the algorithm keeps besides."""


@dataclass(frozen=True)
class Answer:
    """What is said of a comparison; rows are those of `ranking.advise`, with `times_ddp` and `why`.

    base: the cell that the others vary. shown: the rows to show, the fastest of every algorithm (and transport, where
    these differ: by_transport).
    first: the fastest that learns what DDP learns. rival: DDP at its best; None if it cannot be run. default: seconds
    of a step of DDP at its defaults; variants: the same of settings of DDP, each at its best. share: relative error of
    a ratio. beyond: settings that lie outside the points of the calibration. second: the fastest other one that learns
    what DDP learns, if DDP is first. limits: see `levers.levers`, by algorithm.
    """

    base: Cell
    shown: Sequence[Row]
    by_transport: bool
    transports: str
    refused: Mapping[str, str]
    first: Row
    rival: Row | None
    default: float
    variants: Mapping[str, float]
    share: float
    beyond: tuple[str, ...]
    limits: Mapping[str, Mapping[str, float]]
    crossing: Crossing | None
    challenger: str
    memory: Memory

    @property
    def same(self) -> list[Row]:
        """The fastest row of every algorithm that learns what DDP learns."""
        return each_first(row for row in self.shown if row.same_update)

    @property
    def faster(self) -> list[Row]:
        """The fastest row of every algorithm that is faster than these, but learns something else."""
        other = each_first(row for row in self.shown if not row.same_update)
        return [row for row in other if row.step_seconds < self.first.step_seconds]

    @property
    def interval(self) -> tuple[float, float]:
        """That is to hold nine of ten ratios to DDP at its best."""
        return self.first.times_ddp / (1 + self.share), self.first.times_ddp * (1 + self.share)


def answer(rows: Sequence[Row], base: Cell, refused: Mapping[str, str]) -> Answer:
    """The answer for the cell `base`, from the rows of `ranking.advise`; `refused`: who cannot run, and why."""
    baseline = [row for row in rows if row.algorithm == facts.baseline()]
    least = min((row.step_seconds for row in baseline), default=math.nan)
    best = each_first(rows, lambda row: (row.algorithm, row.transport))
    differ, line = transports(best, base)
    best = best if differ else each_first(best)
    best = [replace(row, times_ddp=least / row.step_seconds, why=reasons.why(row.cell)) for row in best]
    same = [row for row in best if row.same_update]
    first = same[0]
    rival = next((row for row in best if row.algorithm == facts.baseline()), None)
    beside = same[-1] if rival is None else rival  # what is asked for may be nothing that DDP has
    posterior = posterior_of(base.cluster.name)
    challenger = next((row for row in same if row.algorithm != facts.baseline()), None)
    cells = {row.algorithm: row.cell for row in (first, rival) if row is not None}
    return Answer(
        base=base,
        shown=best,
        by_transport=differ,
        transports=line,
        refused=refused,
        first=first,
        rival=rival,
        default=_default(baseline, base),
        variants=_variants(rows),
        share=intervals.share_of_ratio(first.cell, beside.cell),
        beyond=() if posterior is None else tuple(posterior.beyond(first.cell)),
        limits={name: levers.levers(cell) for name, cell in cells.items()},
        crossing=_crossing(challenger, baseline),
        challenger="" if challenger is None else challenger.algorithm,
        memory=memory(first.cell),
    )


def memory(cell: Cell) -> Memory:
    """What a rank keeps from step to step, without buffers and activations."""
    layers = layers_of(cell.task)
    weights = _ELEMENT * layers.elements
    moments = round((layers.optimizer_bytes - _PLAIN_TRAFFIC) / _PER_MOMENT)
    state = facts.algorithm(cell.algo).state_bytes(weights, cell.cluster.ranks)
    return Memory(weights, weights, moments * weights, layers.optimizer, state)


def _default(baseline: Sequence[Row], base: Cell) -> float:
    """Seconds of a step of the baseline with its own options, over the transport that is asked for."""
    own = algorithm_part(facts.baseline()).options
    found = [
        row.step_seconds for row in baseline if row.cell.algo.options == own and row.cell.transport == base.transport
    ]
    return found[0] if found else math.nan


def _variants(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds of a step of the baseline's variants, each at its best."""
    best = sorted(each_first(rows), key=lambda row: row.algorithm)
    return {row.algorithm: row.step_seconds for row in best if _is_variant(row.algorithm)}


def _is_variant(name: str) -> bool:
    return facts.option(name).variant_of == facts.baseline()


def _crossing(challenger: Row | None, baseline: Sequence[Row]) -> Crossing | None:
    """Between the best algorithm other than the baseline and the baseline; None if there are not both."""
    if challenger is None or not baseline:
        return None
    over = [row.cell for row in baseline if row.transport == baseline[0].transport]
    return levers.crossing([challenger.cell], over)
