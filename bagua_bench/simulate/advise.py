"""Which algorithm, transport and bucket size for a task on a cluster, by simulation; and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pandas as pd
from hydra.utils import get_class

from bagua_bench.config import CONF
from bagua_bench.emulate.compute import Compute, compute_of
from bagua_bench.emulate.layers import layers_of
from bagua_bench.emulate.scale import scale_model
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.costs import seconds
from bagua_bench.simulate.program import Collective, Program
from bagua_bench.simulate.run import step_seconds

BUCKETS = (1, 5, 10, 25, 64)
"""MiB."""
SAME_UPDATE = (
    "bagua_bench.peers.ddp.DDP",
    "algorithms.gradient_allreduce.GradientAllReduce",
    "algorithms.bytegrad.ByteGrad",
)
"""Algorithms whose step is DDP's: the mean of all gradients, but for rounding."""
WARM_UP = ("algo.warmup_steps=1", "run.steps=5", "run.untimed=0")
"""A whole training in five steps: QAdam needs about a fifth of all steps as its warm-up to learn."""
_NEGLIGIBLE = 0.1
_NO_TIME = 1e-12  # seconds; by which TCP's rate under loss can still be divided
_ROUNDS = 3
_MOST_STEPS = 1000


def options(cluster: dict[str, Any], transport: str) -> list[str]:
    """Transports to compare: the one asked for, and those that the cluster was calibrated with."""
    return [transport, *sorted(set((cluster.get("physics") or {}).get("transport") or {}) - {transport})]


def advise(cells: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row per cell, fastest first: seconds of a step and an epoch, with the calibration's uncertainty, and why."""
    rows = [_row(cell) for cell in cells]
    return pd.DataFrame(rows).sort_values("step_seconds", ignore_index=True)


def variants(cell: dict[str, Any]) -> Iterator[list[str]]:
    """Overrides of what is worth comparing of an algorithm: with its warm-up, a whole interval, both hierarchies."""
    algo, sizes = cell["algo"], [] if _fixed_bucket(cell["algo"]) else BUCKETS
    length = list(WARM_UP) if algo.get("warmup_steps", 0) > 0 else []
    length += [f"run.steps={algo['interval']}"] if algo.get("interval", 1) > 1 else []
    by_server = cell["cluster"]["ranks_per_server"] > 1
    trees = [["algo.hierarchical=false"], ["algo.hierarchical=true"]] if "hierarchical" in algo and by_server else [[]]
    for tree in trees:
        yield from ([*length, *tree, f"run.bucket_size={size}MiB"] for size in sizes)
        if not sizes:
            yield [*length, *tree]


def available(group: str) -> list[str]:
    """Names of a configuration group's files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _fixed_bucket(algo: dict[str, Any]) -> str:
    """The buckets of an algorithm that run.bucket_size does not set; empty where it does."""
    if "bucket_cap_mb" in algo:
        return f"{algo['bucket_cap_mb']:g} MiB"
    return "one" if getattr(get_class(algo["_target_"]), "one_bucket", False) else ""


def _row(cell: dict[str, Any]) -> dict[str, Any]:
    from bagua_bench.simulate.trace import trace

    scaled = scale_model(cell)
    layers, cluster, program = layers_of(scaled), cluster_of(scaled), trace(scaled)
    compute = compute_of(scaled, layers)
    program = _averaging(program, cluster, compute)
    timing = Clock(cluster, compute).run(program)
    step = sum(taken[0]["step"] for taken in timing.steps) / len(timing.steps)
    samples = cell["task"]["batch"] * cell["run"]["accumulate"] * cluster.layout.ranks
    by_server = cell["algo"].get("hierarchical", False) and cluster.layout.per_server > 1
    return {
        "algorithm": cell["algo"]["name"],
        "same_update": cell["algo"]["_target_"] in SAME_UPDATE,
        "steps": len(timing.steps),
        "warm_up": cell["algo"].get("warmup_steps", 0) / len(timing.steps),
        "between": "servers" if by_server else "ranks",
        "transport": cell["transport"]["name"],
        "bucket": _fixed_bucket(cell["algo"]) or f"{cell['run']['bucket_size'] / 2**20:g} MiB",
        "step_seconds": step,
        "epoch_seconds": step * layers.samples_per_epoch / samples,
        "round_seconds": timing.round_seconds if program.round else math.nan,
        "staleness_steps": (timing.staleness if timing.rounds else math.inf) if program.round else math.nan,
        "uncertainty": cluster.physics.uncertainty,
        "why": why(program, cluster, compute, step),
    }


def _averaging(program: Program, cluster: Cluster, compute: Compute) -> Program:
    """The program, if it runs FREE with its last step repeated until some averages have arrived, within reason."""
    if program.round is None:
        return program
    calls = (op for op in (*program.round.before, *program.round.exchange) if isinstance(op, Collective))
    period = program.round.pause + sum(seconds(op, cluster) for op in calls)
    return replace(program, steps=program.steps[-1:] * min(_MOST_STEPS, math.ceil(_ROUNDS * period / compute.step) + 3))


def why(program: Program, cluster: Cluster, compute: Compute, step: float) -> str:
    """What a step's time beyond computing goes away with: how much of it, of how much there is."""
    waiting = 1 - compute.step / step
    if waiting < _NEGLIGIBLE:
        return f"compute-bound: {max(0.0, waiting):.0%} waiting"
    near = deepcopy(cluster.network)
    soon = replace(cluster.physics, latency=_NO_TIME, call=0.0, inside_hop=0.0)
    no_latency = replace(cluster, network=replace(near, latency=0.0, jitter=0.0), physics=soon)
    wide = dict.fromkeys(("line", "ring", "connection", "process", "servers", "shaped"), 1000000000000000.0)
    no_limit = replace(cluster, network=replace(near, line=1e15), physics=replace(cluster.physics, **wide))
    saved = {
        "latency": step - step_seconds(program, no_latency, compute),
        "bandwidth": step - step_seconds(program, no_limit, compute),
    }
    kind = max(saved, key=lambda key: saved[key])
    return f"{kind}-bound: {max(saved[kind], 0) / step:.0%} of {waiting:.0%} waiting"
