"""Turns the measurements of a run's ranks into the numbers of its record."""

from __future__ import annotations

from statistics import fmean, mean
from typing import Any

from bagua_bench.configuration import plain
from bagua_bench.results import stats
from bagua_bench.results.phases import PHASES
from bagua_bench.results.result import Result


def summarise(result: Result) -> dict[str, Any]:
    """The `result` of a record from the lists of the ranks; a step takes as long as on the slowest rank."""
    ranks, samples = result.ranks, result.samples_per_step
    steps = [max(rank["step"] for rank in step) for step in zip(*(rank.seconds for rank in ranks), strict=True)]
    rate = stats.throughput(samples, steps)
    trained = [rank for rank in ranks if rank.trains]
    metrics = [rank.metrics for rank in trained]
    return {
        "step_seconds": steps,
        "throughput": rate,
        "throughput_interval": stats.throughput_interval(samples, steps),
        "epoch_seconds": result.samples_per_epoch / rate,
        "phase_seconds": {phase: _mean_phase(result, phase) for phase in PHASES},
        "bytes_per_step": [{k: v / len(steps) for k, v in rank.sent.items()} for rank in ranks],
        "peak_memory": [rank.peak_memory for rank in ranks],
        "streams": [plain.dump(rank.streams) for rank in ranks],
        "skipped_steps": [rank.skipped_steps for rank in ranks],
        "losses": [mean(losses) for losses in zip(*(rank.losses for rank in trained), strict=True)],
        "metrics": {key: mean(m[key] for m in metrics) for key in metrics[0]},
        **{key: value for key, value in result.to_json().items() if key != "ranks"},
    }


def _mean_phase(result: Result, phase: str) -> float:
    """Mean seconds of a phase over steps and ranks that train; an entry that stands for several is weighted by them."""
    counts = result.rank_counts or (1.0,) * len(result.ranks)
    trained = [(rank, count) for rank, count in zip(result.ranks, counts, strict=True) if rank.trains]
    return fmean([mean(step[phase] for step in rank.seconds) for rank, _ in trained], [count for _, count in trained])
