"""Judges what the parts of `check-gpu` found: one dict (name, status, detail, data) per check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bagua_bench.processes.together import PartFailed

STOPS = "stops here"
"""What a rank prints that is about to stop."""

Check = dict[str, Any]
COPY_SHARE = 0.7
"""Share of a copy's bandwidth that a codec should reach."""
_PRECISIONS = ("fp32", "tf32", "bf16")  # first word of a line from the profile; other lines are warnings


def passed(name: str, detail: str) -> Check:
    """A check that found what it should."""
    return _check(name, True, detail, None)


def skipped(name: str, why: str) -> Check:
    """A check that was not done."""
    return {"name": name, "status": "skipped", "detail": why, "data": None}


def failed(name: str, error: Exception) -> Check:
    """A check that broke; its data are the last lines of what its processes printed."""
    logs = error.logs if isinstance(error, PartFailed) else None
    return {"name": name, "status": "failed", "detail": str(error) or type(error).__name__, "data": logs}


def lost(name: str, error: PartFailed) -> Check:
    """Whether a rank had stopped, and the other one ended in time."""
    stopped = any(STOPS in log.splitlines() for log in error.logs)
    return failed(name, error) if error.late or not stopped else passed(name, f"the other ends: {error}")


def codecs(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """Judge the rows of `algorithms.codecs.benchmark_gpu`."""
    return [
        _check(
            f"{row['operation']}, {row['mebibytes']:.0f} MiB",
            row["of_copy"] >= COPY_SHARE,
            f"{row['of_copy']:.0%} of a copy's bandwidth, {row['bytes_per_second'] / 1e9:.0f} GB/s",
            row,
        )
        for row in rows
        if row["operation"] != "copy"
    ]


def algorithms(transport: str, found: Sequence[Any], oracle: Sequence[Any], traced: bool) -> list[Check]:
    """Check every rank's weights against those of CPU ranks, and that no step waited for the GPU.

    traced: whether there should be a profiler's trace of the steps.
    """
    checks = [_case(f"{name} over {transport}", name, found, oracle) for name in oracle[0]]
    if traced and not any(case.get("traced") for rank in found for case in rank.values()):
        checks.append(
            skipped(f"trace over {transport}", "the profiler saw no CUDA call: waits are those that torch refuses")
        )
    return checks


def carried(transport: str, sent: Sequence[int]) -> Check:
    """Whether every rank sent something through the plugin."""
    said = ", ".join(f"{nbytes / 1e6:.1f} MB" for nbytes in sent)
    return _check(f"bytes over {transport}", min(sent) > 0, f"{said} by the plugin's own count", list(sent))


def _case(title: str, name: str, found: Sequence[Any], oracle: Sequence[Any]) -> Check:
    if errors := [rank[name]["error"] for rank in [*found, *oracle] if "error" in rank[name]]:
        return _check(title, False, errors[0], None)
    pairs = [(rank[name]["weights"], expected[name]["weights"]) for rank, expected in zip(found, oracle, strict=True)]
    distance = max(float((own.float() - wanted.float()).norm() / wanted.float().norm()) for own, wanted in pairs)
    equal = all(bool((own == wanted).all()) for own, wanted in pairs)
    waits = next((rank[name]["waits"] for rank in found if rank[name]["waits"]), None)
    data = {"distance": distance, "bit_equal": equal, "waits": waits, "traced": found[0][name].get("traced")}
    detail = f"weights {distance:.1e} from the CPU's{', bit for bit' if equal else ''}"
    close = distance < oracle[0][name]["tolerance"]  # NaN is not
    return _check(title, close and waits is None, detail + (f"; waits: {waits}" if waits else ""), data)


def ratios(title: str, found: dict[str, dict[str, Any]], least: float | None) -> list[Check]:
    """Throughput ratios by model; `least` is the goal, None if there is none."""
    return [
        _check(f"{title}, {name}", least is None or one["throughput_ratio"] >= least,
               f"{one['throughput_ratio']:.3f} ({one['ratios'][0]:.3f} to {one['ratios'][-1]:.3f})", one)
        for name, one in found.items()
    ]  # fmt: skip


def profile(lines: Sequence[str]) -> list[Check]:
    """One check per line of the profile: a file that it wrote, or a task that was not measured as it is, and why."""
    checks = []
    for precision, _, said in (line.partition(": ") for line in lines):
        if precision in _PRECISIONS and "compute=" in said:
            checks.append(passed(f"profile, {precision}", said))
        elif precision in _PRECISIONS:
            task, _, reason = said.partition(": ")
            checks.append(skipped(f"profile, {precision}, {task}", reason))
    return checks


def _check(name: str, passed: bool, detail: str, data: Any) -> Check:
    return {"name": name, "status": "passed" if passed else "failed", "detail": detail, "data": data}
