"""Where autotuning should begin: the settings of the engine with which a step is simulated to be shortest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.lookup import layers_of
from bagua_bench.results.result import Values
from bagua_bench.simulate.run import simulate

_SMALLEST = 20  # binary logarithm of bytes
_CHANNELS = (1, 2, 4)
_ELEMENT = 4  # bytes of a float32
_STEPS = 2


def proposed(cell: Cell) -> Cell:
    """The cell with what to try first: the engine's own setting, then as many proposals as it asks for.

    Proposals are only as good as the simulator: with the own setting among them tuning cannot end with a worse one.
    Imports torch where the cell asks for any.
    """
    asked = cell.run.autotune
    if asked is None or not asked.advised:
        return cell
    first = ({}, *proposals(cell)[: asked.advised])
    return replace(cell, run=replace(cell.run, autotune=replace(asked, first=first)))


def proposals(cell: Cell) -> list[Values]:
    """Values of a tuner's settings, keyed as `Study.trials`, by the simulated time of a step, shortest first."""
    return sorted(_candidates(cell), key=lambda values: _seconds(cell, values))


def _candidates(cell: Cell) -> Iterator[Values]:
    declared, cluster = facts.algorithm(cell.algo), cell.cluster
    largest = math.ceil(math.log2(_ELEMENT * layers_of(cell.task).elements))
    sizes = [] if declared.buckets else range(min(_SMALLEST, largest), largest + 1)
    ways = [{"bucket_size_2p": size, "channels": number} for size in sizes for number in _CHANNELS] or [{}]
    nested = cluster.servers > 1 and cluster.ranks_per_server > 1 and "hierarchical" in cell.algo.options
    for form in ({"hierarchical": 0}, {"hierarchical": 1}) if nested else ({},):
        yield from ({**way, **form} for way in ways)


def _seconds(cell: Cell, values: Values) -> float:
    """Simulated seconds of a step of the cell with these values, behind the algorithm's warm-up."""
    run, algo, declared = cell.run, cell.algo, facts.algorithm(cell.algo)
    if "bucket_size_2p" in values:
        run = replace(run, bucket_size=2 ** values["bucket_size_2p"], channels=values["channels"])
    if "hierarchical" in values:
        algo = replace(algo, options={**algo.options, "hierarchical": bool(values["hierarchical"])})
    run = replace(run, steps=_STEPS, untimed=max(1, declared.warm_up), autotune=None, trace=None)
    result = simulate(replace(cell, mode="simulate", algo=algo, run=run))
    return max(sum(step["step"] for step in rank.seconds) for rank in result.ranks)
