"""What the parts of `check-gpu` found, judged: one dict (name, status, detail, data) per check.

A part's outcome is a list with a result per rank, a list with one exception, or a text: why it was skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Outcome = list[Any] | str
COPY_SHARE = 0.7
"""Of a copy's bandwidth, that a codec is to reach."""
_CLOSE = 1e-4  # relative distance of weights: a level of a codec may flip where sums round differently
_PRECISIONS = ("fp32", "tf32", "bf16")  # the first word of what a profile says; other lines are warnings
_FREE = "AsyncModelAverage"  # runs beside training: no two runs are alike, and pausing it waits


def codecs(outcome: Outcome) -> list[dict[str, Any]]:
    """Of `algorithms.codecs.benchmark_gpu`."""
    if (early := _early("codecs", outcome)) is not None:
        return early
    return [
        _check(
            f"{row['operation']}, {row['mebibytes']:.0f} MiB",
            row["of_copy"] >= COPY_SHARE,
            f"{row['of_copy']:.0%} of a copy's bandwidth, {row['bytes_per_second'] / 1e9:.0f} GB/s",
            row,
        )
        for row in outcome
        if isinstance(row, dict) and row["operation"] != "copy"
    ]


def algorithms(transport: str, outcome: Outcome, oracle: Outcome) -> list[dict[str, Any]]:
    """Weights of every algorithm against those of CPU ranks, and that no step waited for the GPU."""
    for found in (outcome, oracle):
        if (early := _early(f"algorithms over {transport}", found)) is not None:
            return early
    return [_algorithm(f"{name} over {transport}", name, outcome, oracle) for name in oracle[0]]


def _algorithm(title: str, name: str, outcome: Sequence[Any], oracle: Sequence[Any]) -> dict[str, Any]:
    distances, equal = [], True
    for rank, expected in zip(outcome, oracle, strict=True):
        own: dict[str, Any] = rank[name]
        wanted = expected[name]["weights"]
        distances.append(float((own["weights"] - wanted).norm() / wanted.norm()))
        equal = equal and bool((own["weights"] == wanted).all())
    waits = outcome[0][name]["waits"]
    data = {"distance": max(distances), "bit_equal": equal, "waits": waits, "traced": outcome[0][name].get("traced")}
    close = max(distances) < (1.0 if name == _FREE else _CLOSE)  # NaN is not
    detail = f"weights {max(distances):.1e} from the CPU's{', bit for bit' if equal else ''}"
    return _check(title, close and waits is None, detail + (f"; waits: {waits}" if waits else ""), data)


def ratios(title: str, outcome: Outcome, least: float | None) -> list[dict[str, Any]]:
    """Throughput ratios by model; `least` is the goal, None: there is none."""
    if (early := _early(title, outcome)) is not None:
        return early
    assert not isinstance(outcome, str)
    found: dict[str, dict[str, Any]] = outcome[0]
    return [
        _check(f"{title}, {name}", least is None or one["throughput_ratio"] >= least,
               f"{one['throughput_ratio']:.3f} ({one['ratios'][0]:.3f} to {one['ratios'][-1]:.3f})", one)
        for name, one in found.items()
    ]  # fmt: skip


def profile(outcome: Outcome) -> list[dict[str, Any]]:
    """One check per line that the profile printed: a file written, or what was not measured as it is, and why."""
    if (early := _early("profile", outcome)) is not None:
        return early
    found = []
    for precision, _, said in (str(line).partition(": ") for line in outcome):
        if precision in _PRECISIONS and "compute=" in said:
            found.append(_check(f"profile, {precision}", True, said, None))
        elif precision in _PRECISIONS:
            task, _, reason = said.partition(": ")
            found += _early(f"profile, {precision}, {task}", reason) or []
    return found


def _early(name: str, outcome: Outcome) -> list[dict[str, Any]] | None:
    """The verdict on a part that has no results."""
    if isinstance(outcome, str):
        return [{"name": name, "status": "skipped", "detail": outcome, "data": None}]
    if isinstance(outcome[0], Exception):
        return [{"name": name, "status": "failed", "detail": str(outcome[0]), "data": None}]
    return None


def _check(name: str, passed: bool, detail: str, data: Any) -> dict[str, Any]:
    return {"name": name, "status": "passed" if passed else "failed", "detail": detail, "data": data}
