"""What the processes found, as rows of a table. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bagua_bench.results import stats

_SHARE = 0.05  # of what the tensors need, for all else that an engine keeps

COLUMNS = {
    "time": {
        "task": "{task}",
        "algorithm": "{algorithm}",
        "DDP, ms": "{ddp_ms:.1f}",
        "ratio of step times": "{ratio:.3f}",
        "95 %": "{low:.3f} ... {high:.3f}",
        "DDP / DDP": "{same:.3f}",
        "95 % ": "{same_low:.3f} ... {same_high:.3f}",
        "rounds": "{rounds}",
    },
    "memory": {
        "task": "{task}",
        "algorithm": "{algorithm}",
        "activations, MB": "{activations_mb:.0f}",
        "peak besides": "{peak_mb:.0f}",
        "tensors": "{tensors_mb:.0f}",
        "of these state": "{state_mb:.0f}",
        "largest bucket": "{bucket_mb:.0f}",
        "allowed": "{allowed_mb:.0f}",
        "within": "{within}",
    },
}
"""Titles and formats of the columns of each part."""


def times(task: str, algos: Sequence[str], ranks: Sequence[Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """A row per algorithm, from the seconds of the steps: DDP's, DDP's again, the algorithms', by rank and round.

    algos: DDP, then the algorithms. A step lasts as long as its slowest rank's.
    """
    slowest = np.max(np.asarray(ranks, dtype=float), axis=0)  # by round and system
    same, same_interval = _ratio(slowest[:, 1], slowest[:, 0])
    rows = []
    for k, algo in enumerate(algos[1:], 2):
        ratio, interval = _ratio(slowest[:, k], slowest[:, 0])
        rows.append(
            {
                "task": task,
                "algorithm": algo,
                "ddp_ms": float(np.median(slowest[:, 0])) * 1e3,
                "ratio": ratio,
                "low": interval[0],
                "high": interval[1],
                "same": same,
                "same_low": same_interval[0],
                "same_high": same_interval[1],
                "rounds": len(slowest),
                "seconds": {"ddp": [*slowest[:, 0]], "again": [*slowest[:, 1]], "algorithm": [*slowest[:, k]]},
            }
        )
    return rows


def _ratio(ours: Any, theirs: Any) -> tuple[float, tuple[float, float]]:
    return float(np.median(ours / theirs)), stats.median_interval([*(ours / theirs)])


def memory(task: str, algo: str, found: Mapping[str, int], plain: Mapping[str, int], state: float) -> dict[str, Any]:
    """A row: the peak beyond process and activations, beside what weights, gradients, optimizer and state need.

    found: of the rank with the highest peak; plain: the activations, of plain torch. Nothing is
    allowed or forbidden to a peer, whose buckets are not known.
    """
    activations, need = plain["activations"], found["weights"] + found["gradients"] + found["optimizer"] + state
    peak, allowed = found["peak"] - activations, (1 + _SHARE) * need + 2 * found["bucket"]
    return {
        "task": task,
        "algorithm": algo,
        "peak_mb": peak / 1e6,
        "activations_mb": activations / 1e6,
        "tensors_mb": need / 1e6,
        "state_mb": state / 1e6,
        "bucket_mb": found["bucket"] / 1e6,
        "allowed_mb": allowed / 1e6,
        "within": ("yes" if peak <= allowed else "no") if found["bucket"] else "-",
    }
