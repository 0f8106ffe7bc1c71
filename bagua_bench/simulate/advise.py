"""Which algorithm, transport and bucket size for a task on a cluster, by simulation; and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pandas as pd

from bagua_bench.config import CONF
from bagua_bench.emulate.compute import Compute, compute_of
from bagua_bench.emulate.layers import layers_of
from bagua_bench.emulate.scale import scale_model
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.program import Program
from bagua_bench.simulate.run import step_seconds

BUCKETS = (1, 5, 10, 25, 64)
"""MiB."""
_NEGLIGIBLE = 0.1


def options(cluster: dict[str, Any], transport: str) -> list[str]:
    """Transports to compare: the one asked for, and those that the cluster was calibrated with."""
    return [transport, *sorted(set((cluster.get("physics") or {}).get("transport") or {}) - {transport})]


def advise(cells: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row per cell, fastest first: seconds of a step and an epoch, with the calibration's uncertainty, and why."""
    rows = [_row(cell) for cell in cells]
    return pd.DataFrame(rows).sort_values("step_seconds", ignore_index=True)


def variants(cell: dict[str, Any]) -> Iterator[list[str]]:
    """Overrides of what is worth comparing of an algorithm: past its warm-up, a whole interval, both hierarchies."""
    algo, own = cell["algo"], [] if cell["algo"]["_target_"].startswith("bagua_bench.peers.") else BUCKETS
    past = ["algo.warmup_steps=1"] if algo.get("warmup_steps", 0) > 1 else []
    past += [f"run.steps={algo['interval']}"] if algo.get("interval", 1) > 1 else []
    by_server = cell["cluster"]["ranks_per_server"] > 1
    trees = [["algo.hierarchical=false"], ["algo.hierarchical=true"]] if "hierarchical" in algo and by_server else [[]]
    for tree in trees:
        yield from ([*past, *tree, f"run.bucket_size={size}MiB"] for size in own)
        if not own:
            yield [*past, *tree]


def available(group: str) -> list[str]:
    """Names of a configuration group's files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _row(cell: dict[str, Any]) -> dict[str, Any]:
    from bagua_bench.simulate.trace import trace

    cell = scale_model(cell)
    layers, cluster, program = layers_of(cell), cluster_of(cell), trace(cell)
    compute = compute_of(cell, layers)
    step = step_seconds(program, cluster, compute)
    samples = cell["task"]["batch"] * cell["run"]["accumulate"] * cluster.layout.ranks
    return {
        "algorithm": cell["algo"]["name"],
        "by_server": cell["algo"].get("hierarchical", False) and cluster.layout.per_server > 1,
        "transport": cell["transport"]["name"],
        "bucket_mib": cell["run"]["bucket_size"] / 2**20,
        "step_seconds": step,
        "epoch_seconds": step * layers.samples_per_epoch / samples,
        "uncertainty": cluster.physics.uncertainty,
        "why": why(program, cluster, compute, step),
    }


def why(program: Program, cluster: Cluster, compute: Compute, step: float) -> str:
    """One sentence: what a step's time beyond computing goes away with."""
    waiting = 1 - compute.step / step
    if waiting < _NEGLIGIBLE:
        return f"compute-bound: communication costs {max(0.0, waiting):.0%} of a step."
    near = deepcopy(cluster.network)
    no_latency = replace(
        cluster,
        network=replace(near, latency=0.0, jitter=0.0),
        physics=replace(cluster.physics, latency=0.0, call=0.0, inside_hop=0.0),
    )
    wide = dict.fromkeys(("line", "ring", "connection", "process", "servers", "shaped"), 1000000000000000.0)
    no_limit = replace(cluster, network=replace(near, line=1e15), physics=replace(cluster.physics, **wide))
    saved = {
        "latency": step - step_seconds(program, no_latency, compute),
        "bandwidth": step - step_seconds(program, no_limit, compute),
    }
    kind = max(saved, key=lambda key: saved[key])
    share = max(saved[kind], 0) / step
    return f"{kind}-bound: {waiting:.0%} of a step is waiting; {share:.0%} would go with an ideal {kind}."
