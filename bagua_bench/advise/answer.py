"""The answer that a comparison gives: what is fastest, against what, how sure, at what cost, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bagua_bench.advise import intervals, levers, reasons
from bagua_bench.advise.assumptions import transports
from bagua_bench.advise.levers import Crossing
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

    base: the cell that the others vary. shown: the rows to show, the fastest of every algorithm (and transport).
    first: the fastest that learns what DDP learns. rival: DDP at its best; None if it cannot be run. default: seconds
    of a step of DDP at its defaults; variants: the same of settings of DDP, each at its best. share: relative error of
    a ratio. beyond: settings that lie outside the points of the calibration. second: the fastest other one that learns
    what DDP learns, if DDP is first. limits: see `levers.levers`, by algorithm.
    """

    base: Cell
    shown: pd.DataFrame
    transports: str
    refused: Mapping[str, str]
    first: Any
    rival: Any
    default: float
    variants: Mapping[str, float]
    share: float
    beyond: tuple[str, ...]
    limits: Mapping[str, Mapping[str, float]]
    crossing: Crossing | None
    challenger: str
    memory: Memory

    @property
    def same(self) -> pd.DataFrame:
        """The fastest row of every algorithm that learns what DDP learns."""
        return self.shown[self.shown["same_update"]].drop_duplicates("algorithm")

    @property
    def faster(self) -> pd.DataFrame:
        """The fastest row of every algorithm that is faster than these, but learns something else."""
        other = self.shown[~self.shown["same_update"]].drop_duplicates("algorithm")
        return other[other["step_seconds"] < self.first["step_seconds"]]

    @property
    def interval(self) -> tuple[float, float]:
        """That is to hold nine of ten ratios to DDP at its best."""
        return self.first["times_ddp"] / (1 + self.share), self.first["times_ddp"] * (1 + self.share)


def answer(table: pd.DataFrame, base: Cell, refused: Mapping[str, str]) -> Answer:
    """The answer for the cell `base`, from the `table` of `ranking.advise`; `refused`: who cannot run, and why."""
    best, line = transports(table.drop_duplicates(["algorithm", "transport"]), base)
    baseline = table[table["algorithm"] == facts.baseline()]
    best = best.assign(
        times_ddp=baseline["step_seconds"].min() / best["step_seconds"], why=best["cell"].map(reasons.why)
    )
    same = best[best["same_update"]]
    first = same.iloc[0]
    rivals = best[best["algorithm"] == facts.baseline()]
    rival = rivals.iloc[0] if len(rivals) else None
    beside = same.iloc[-1] if rival is None else rival  # what is asked for may be nothing that DDP has
    posterior = posterior_of(base.cluster.name)
    others = same[same["algorithm"] != facts.baseline()]
    challenger = others.iloc[0] if len(others) else None
    cells = {row["algorithm"]: row["cell"] for row in (first, rival) if row is not None}
    return Answer(
        base=base,
        shown=best,
        transports=line,
        refused=refused,
        first=first,
        rival=rival,
        default=_default(baseline, base),
        variants=_variants(table),
        share=intervals.share_of_ratio(first["cell"], beside["cell"]),
        beyond=() if posterior is None else tuple(posterior.beyond(first["cell"])),
        limits={name: levers.levers(cell) for name, cell in cells.items()},
        crossing=_crossing(challenger, baseline),
        challenger="" if challenger is None else challenger["algorithm"],
        memory=memory(first["cell"]),
    )


def memory(cell: Cell) -> Memory:
    """What a rank keeps from step to step, without buffers and activations."""
    layers = layers_of(cell.task)
    weights = _ELEMENT * layers.elements
    moments = round((layers.optimizer_bytes - _PLAIN_TRAFFIC) / _PER_MOMENT)
    state = facts.algorithm(cell.algo).state_bytes(weights, cell.cluster.ranks)
    return Memory(weights, weights, moments * weights, layers.optimizer, state)


def _default(baseline: pd.DataFrame, base: Cell) -> float:
    """Seconds of a step of the baseline with its own options, over the transport that is asked for."""
    own = algorithm_part(facts.baseline()).options
    found = [
        row.step_seconds
        for row in baseline.itertuples()
        if row.cell.algo.options == own and row.cell.transport == base.transport
    ]
    return float(found[0]) if found else math.nan


def _variants(table: pd.DataFrame) -> dict[str, float]:
    """Seconds of a step of the baseline's variants, each at its best."""
    least = table.groupby("algorithm")["step_seconds"].min()
    return {name: float(least[name]) for name in least.index if facts.option(name).variant_of == facts.baseline()}


def _crossing(challenger: Any, baseline: pd.DataFrame) -> Crossing | None:
    """Between the best algorithm other than the baseline and the baseline; None if there are not both."""
    if challenger is None or not len(baseline):
        return None
    over = baseline[baseline["transport"] == baseline.iloc[0]["transport"]]
    return levers.crossing([challenger["cell"]], list(over["cell"]))
