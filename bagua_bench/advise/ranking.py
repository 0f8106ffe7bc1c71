"""Ranks algorithms, transports, bucket sizes and channels for a task on a cluster by simulation, and says why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pandas as pd

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell, ClusterPart
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.machine.compute import Compute, compute_of, speed_classes
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Program
from bagua_bench.machine.scale import scale_model
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.run import mean_step, step_seconds, with_rounds

BUCKETS = (1, 5, 10, 25, 64)
"""Bucket sizes to try, MiB."""
CHANNELS = (1, 2, 4)
"""Numbers of buckets under way at a time to try."""
_NEGLIGIBLE = 0.1
_NO_TIME = 1e-12  # seconds; not zero, as TCP's rate under loss is divided by it


def options(cluster: ClusterPart, transport: str) -> list[str]:
    """Transports to compare: the one asked for, and those that the cluster was calibrated with."""
    return [transport, *sorted(set(cluster.transports) - {transport})]


def advise(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row per cell, fastest first: seconds of a step and an epoch, with the calibration's uncertainty, and why."""
    rows = [_row(cell) for cell in cells]
    return pd.DataFrame(rows).sort_values("step_seconds", ignore_index=True)


def variants(cell: Cell) -> Iterator[list[str]]:
    """Overrides of an algorithm's variants worth comparing: all its forms, over a whole period or training."""
    declared = facts.algorithm(cell.algo)
    by_server = cell.cluster.ranks_per_server > 1
    forms = declared.compare if by_server else ((),)
    ways = [[]] if declared.buckets else _ways()
    for form in forms:
        yield from ([*length(declared), *(f"algo.{option}" for option in form), *way] for way in ways)


def _ways() -> list[list[str]]:
    """What the engine chooses by itself, then what a user may choose instead."""
    chosen = [[f"run.bucket_size={size}MiB", f"run.channels={number}"] for number in CHANNELS for size in BUCKETS]
    return [["run.bucket_size=null", "run.channels=null"], *chosen]


def length(declared: facts.AlgorithmFacts) -> list[str]:
    """Overrides that make the mean step that of a whole training: with the warm-up's share, or over whole periods."""
    if not declared.warm_up_share:
        return [f"run.steps={declared.period}"] if declared.period > 1 else []
    options = [f"algo.{option}" for option in declared.warm_up_of_one]
    return [*options, f"run.steps={round(1 / declared.warm_up_share)}", "run.untimed=0"]


def available(group: str) -> list[str]:
    """Names of a configuration group's files."""
    return sorted(path.stem for path in (FOLDER / group).glob("*.yaml"))


def _row(cell: Cell) -> dict[str, Any]:
    from bagua_bench.simulate.rehearsal import rehearse

    scaled = scale_model(cell)
    layers, cluster = layers_of(scaled.task, scaled.shrink), cluster_of(scaled)
    scaled = settled(scaled, cluster)
    program = rehearse(scaled)
    compute = compute_of(scaled, layers)
    declared, layout = facts.algorithm(cell.algo), cluster.layout
    if program.round is not None:
        program = with_rounds(program, cluster, compute, declared.rounds)
    factors = [*speed_classes(cell.cluster)]
    timing = Clock(cluster, compute, factors).run(program)
    step = mean_step(timing)
    seconds, rounds = step * cell.haste, timing.round_seconds * cell.haste if program.round else math.nan
    samples = cell.task.batch * cell.run.accumulate * layout.ranks
    by_server = declared.by_server and layout.per_server > 1 and layout.servers > 1
    return {
        "algorithm": cell.algo.name,
        "same_update": declared.same_update,
        "steps": len(timing.steps),
        "warm_up": declared.warm_up_share,
        "note": declared.note,
        "between": "servers" if by_server else "ranks",
        "transport": cell.transport.name,
        "bucket": declared.buckets or f"{(scaled.run.bucket_size or 0) * scaled.shrink / 2**20:.3g} MiB",
        "channels": "" if declared.buckets else f"{scaled.run.channels}",
        "step_seconds": seconds,
        "epoch_seconds": seconds * layers.samples_per_epoch / samples,
        "round_seconds": rounds,
        "staleness_steps": (timing.staleness if timing.rounds else math.inf) if program.round else math.nan,
        "uncertainty": cluster.physics.uncertainty,
        "why": why(program, cluster, compute, step, factors),
    }


def why(program: Program, cluster: Cluster, compute: Compute, step: float, factors: Sequence[float] = (1.0,)) -> str:
    """Whichever of latency and bandwidth causes more waiting: the share of a step it costs, of the share waited.

    Waiting for a straggler's computing is not counted; `factors` are those of `step_seconds`.
    """
    waiting = 1 - compute.step * max(factors) / step
    if waiting < _NEGLIGIBLE:
        return f"compute-bound: {max(0.0, waiting):.0%} waiting"
    near = deepcopy(cluster.network)
    soon = replace(cluster.physics, latency=_NO_TIME, call=0.0, inside_hop=0.0)
    no_latency = replace(cluster, network=replace(near, latency=0.0, jitter=0.0), physics=soon)
    wide = dict.fromkeys(("line", "ring", "connection", "process", "servers", "shaped"), 1000000000000000.0)
    no_limit = replace(cluster, network=replace(near, line=1e15), physics=replace(cluster.physics, **wide))
    saved = {
        "latency": step - step_seconds(program, no_latency, compute, factors),
        "bandwidth": step - step_seconds(program, no_limit, compute, factors),
    }
    kind = max(saved, key=lambda key: saved[key])
    return f"{kind}-bound: {max(saved[kind], 0) / step:.0%} of {waiting:.0%} waiting"
