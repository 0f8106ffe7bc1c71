"""What advice compares: every algorithm that can run on the cluster, in all forms and settings. No torch import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import Cell, RunPart, TransportPart
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.configuration.variants import algorithm_part

BUCKETS = (2, 10, 50)
"""Bucket sizes to try beside the engine's own, MiB."""
CHANNELS = (1, 2, 4)
"""Numbers of buckets under way at a time to try."""
_MIB = 2**20


@dataclass(frozen=True)
class Candidates:
    """The cells to compare, and why an algorithm is not among them, by its name."""

    cells: tuple[Cell, ...]
    refused: dict[str, str]


def candidates(base: Cell, transports: Sequence[TransportPart]) -> Candidates:
    """All algorithms that can be run where `base` is, in the variants worth comparing, over each transport."""
    cells: list[Cell] = []
    refused: dict[str, str] = {}
    for name in conf_folder.names("algo"):
        declared = facts.option(name)
        if not {"measure", "simulate"} <= {*declared.modes} or not declared.advised:
            continue  # not to be recommended, or not to be predicted
        for form in forms(base, name):
            found, reason = _of_form(form, transports)
            cells += found
            refused |= {} if found or name in {cell.algo.name for cell in cells} else {name: reason}
    return Candidates(tuple(cells), {name: why for name, why in refused.items() if why})


def _of_form(form: Cell, transports: Sequence[TransportPart]) -> tuple[list[Cell], str]:
    """The cells of one form of an algorithm; or none, and the reason."""
    try:
        validate(form)
    except ConfigError as error:
        return [], str(error)
    return [replace(cell, transport=transport) for transport in transports for cell in ways(form)], ""


def forms(base: Cell, name: str) -> Iterator[Cell]:
    """An algorithm in all its forms, over a whole period or training."""
    declared, cluster = facts.option(name), base.cluster
    shapes = declared.compare if cluster.ranks_per_server > 1 else ((),)
    for shape in shapes:
        for speed in declared.search:
            algo = algorithm_part(name, (*shape, *speed, *_warm_up(declared)))
            yield replace(base, algo=algo, run=length(base.run, facts.algorithm(algo)))


def ways(form: Cell) -> Iterator[Cell]:
    """The engine's own buckets and channels, then what a user may choose instead."""
    run = form.run
    yield replace(form, run=replace(run, bucket_size=None, channels=None))
    if not facts.algorithm(form.algo).buckets:
        for number in CHANNELS:
            for size in BUCKETS:
                yield replace(form, run=replace(run, bucket_size=size * _MIB, channels=number))


def length(run: RunPart, declared: facts.AlgorithmFacts) -> RunPart:
    """Steps whose mean is that of a whole training: with the warm-up's share, or over whole periods."""
    if declared.warm_up_share:
        return replace(run, steps=round(1 / declared.warm_up_share), untimed=0)
    return replace(run, steps=declared.period, untimed=1)


def _warm_up(declared: facts.AlgorithmFacts) -> tuple[str, ...]:
    return declared.warm_up_of_one if declared.warm_up_share else ()
