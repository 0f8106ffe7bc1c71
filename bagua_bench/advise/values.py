"""An answer as plain values for other programs: seconds, bytes, bits/s, ratios; null for what does not exist."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bagua_bench.advise import checks
from bagua_bench.advise.answer import Answer, memory
from bagua_bench.advise.assumptions import assumptions
from bagua_bench.advise.ranking import Row
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.cluster import cluster_of


def values(found: Answer, arguments: Sequence[str]) -> dict[str, Any]:
    """All that `words.text` says, and the tables."""
    first, turn = found.first, found.crossing
    ratios = {"ddp_at_its_best": first.times_ddp, "ddp_at_its_defaults": found.default / first.step_seconds}
    ratios |= {name: seconds / first.step_seconds for name, seconds in found.variants.items()}
    plain: dict[str, Any] = _plain(
        {
            "assumed": _assumed(found.base),
            "transports": found.transports,
            "fastest": {
                **_row(first),
                "times_as_fast_as": ratios,
                "interval": found.interval,
                "extrapolated": found.beyond,
                "memory": asdict(found.memory),
                "engine": checks.engine(first) or None,
            },
            "limits": found.limits,
            "turns": None if turn is None else {"algorithm": found.challenger, **asdict(turn)},
            "check": checks.commands(found, arguments),
            "learning_what_ddp_learns": _rows(found, same=True),
            "learning_something_else": _rows(found, same=False),
            "not_compared": dict(found.refused),
        }
    )
    return plain


def _assumed(base: Cell) -> dict[str, Any]:
    layers, cluster = layers_of(base.task, base.shrink), cluster_of(base)
    compute = compute_of(base, layers)
    return {
        "text": assumptions(base),
        "task": base.task.name,
        "parameters": layers_of(base.task).elements,
        "layers": layers.assumed or None,
        "batch": base.task.batch,
        "servers": base.cluster.servers,
        "ranks_per_server": base.cluster.ranks_per_server,
        "computing_seconds": compute.step * base.haste,
        "computing_from": compute.origin,
        "bandwidth": 8 * (cluster.network.line or cluster.physics.line),
        "latency_seconds": cluster.latency,
        "sites": base.network.sites,
        "between_sites": asdict(base.network.wan) if base.network.sites > 1 else None,
        "cluster": base.cluster.name,
        "uncertainty": cluster.physics.uncertainty,
        "calibrated": "uncertainty" in base.cluster.physics,
    }


def _rows(found: Answer, same: bool) -> list[dict[str, Any]]:
    return [_row(row) for row in found.shown if row.same_update == same]


def _row(row: Row) -> dict[str, Any]:
    cell = row.cell
    declared = facts.algorithm(cell.algo)
    learned = declared.learned
    return {
        "algorithm": row.algorithm,
        "settings": checks.settings(row),
        "between": row.between,
        "transport": cell.transport.name,
        "bucket": row.bucket,
        "channels": int(row.channels) if row.channels else None,
        "step_seconds": row.step_seconds,
        "epoch_seconds": row.epoch_seconds or None,
        "times_ddp": row.times_ddp,
        "why": row.why,
        "stale_steps": row.staleness_steps,
        "warm_up_share": row.warm_up,
        "state_bytes": memory(cell).state,
        "learned": dict(zip(("mean", "least", "most"), learned, strict=True)) if learned else None,
        "note": row.note or None,
    }


def _plain(value: Any) -> Any:
    """With numbers of Python's own, lists in place of tuples, and null for what is no finite number."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
