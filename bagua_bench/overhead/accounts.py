"""What the processes found, as rows of a table. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bagua_bench.results import stats

_SHARE = 0.05  # of what the tensors need, for all else that an engine keeps
_LOOP = "plain loop"
WAYS = {"plain": _LOOP, "again": _LOOP, "ours": "fuse()", "foreach": "foreach=True", "fused": "fused=True"}
"""Ways of taking an optimizer's step: parameter by parameter, the same again for the noise, ours, and torch's two."""

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
    "optimizer": {
        "model": "{model}",
        "optimizer": "{name}",
        "plain loop, ms": "{plain_ms:.2f}",
        "fuse() / plain": "{ours}",
        "foreach / plain": "{foreach}",
        "fused / plain": "{fused}",
        "plain / plain": "{again}",
        "fuse() / fused": "{ours_to_fused}",
        "fastest": "{fastest}",
        "rounds": "{rounds}",
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


def optimizers(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per model and optimizer: every way's time over the plain loop's, round by round, with 95 % intervals."""
    rows = []
    for each in found:
        seconds: dict[str, Any] = {way: np.asarray(taken) for way, taken in each["seconds"].items()}
        plain = seconds["plain"]
        ratios = {way: _ratio(seconds[way], plain) if way in seconds else None for way in WAYS if way != "plain"}
        ratios["ours_to_fused"] = _ratio(seconds["ours"], seconds["fused"]) if "fused" in seconds else None
        name, median = each["optimizer"].rpartition(".")[2], float(np.median(plain))
        row = {**each, "name": name, "plain_ms": median * 1e3, "rounds": len(plain), "ratios": ratios}
        shown = {key: _shown(ratio) for key, ratio in ratios.items()}
        rows.append({**row, **shown, "fastest": _fastest(seconds)})
    return rows


def _shown(ratio: tuple[float, tuple[float, float]] | None) -> str:
    """A ratio and its interval; `-` for a way that the optimizer does not have."""
    return "-" if ratio is None else f"{ratio[0]:.2f} ({ratio[1][0]:.2f}-{ratio[1][1]:.2f})"


def advice(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which optimizers are better left to torch's own kernels, and which to `fuse`, a line per model and way."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for way, what in (("fused", "prefer torch's own kernel, fused=True"), ("ours", "prefer fuse()")):
            names = [row["name"] for row in rows if row["model"] == model and row["fastest"] == WAYS[way]]
            if names:
                lines.append(f"{model}: {what}, for {', '.join(names)}")
    return lines


def _fastest(seconds: Mapping[str, Any]) -> str:
    """What takes the least time: several ways if their intervals overlap, the noise of the plain loop included."""
    again = _ratio(seconds["again"], seconds["plain"])[1]
    noise = max(again[1], 1 / again[0], 1.0)
    medians = {way: float(np.median(taken)) for way, taken in seconds.items() if way != "again"}
    best = min(medians, key=medians.__getitem__)
    near = [way for way in medians if way == best or _ratio(seconds[way], seconds[best])[1][0] <= noise]
    return " or ".join(WAYS[way] for way in near)


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
