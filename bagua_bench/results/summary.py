"""Turns the measurements of a run's ranks into the numbers of its record."""

from __future__ import annotations

from itertools import accumulate, pairwise
from statistics import fmean, mean
from typing import Any

from bagua_bench.configuration import plain
from bagua_bench.results import stats
from bagua_bench.results.phases import PHASES
from bagua_bench.results.result import Result


def summarise(result: Result) -> dict[str, Any]:
    """The `result` of a record from the lists of the ranks."""
    ranks, samples = result.ranks, result.samples_per_step
    steps = _steps(result)
    rate = stats.throughput(samples, steps)
    trained = [rank for rank in ranks if rank.trains]
    metrics = [rank.metrics for rank in trained]
    return {
        "step_seconds": steps,
        "throughput": rate,
        "throughput_interval": stats.throughput_interval(samples, steps),
        "epoch_seconds": result.samples_per_epoch / rate or None,
        "phase_seconds": {phase: _mean_phase(result, phase) for phase in PHASES},
        "bytes_per_step": [{k: v / len(steps) for k, v in rank.sent.items()} for rank in ranks],
        "peak_memory": [rank.peak_memory for rank in ranks],
        "streams": [plain.dump(rank.streams) for rank in ranks],
        "skipped_steps": [rank.skipped_steps for rank in ranks],
        "losses": [mean(losses) for losses in zip(*(rank.losses for rank in trained), strict=True)],
        "metrics": {key: mean(m[key] for m in metrics) for key in metrics[0]},
        **{key: value for key, value in result.to_json().items() if key != "ranks"},
    }


def _steps(result: Result) -> list[float]:
    """Seconds of the steps of all ranks together: each from the end of the one before until the last rank has ended it.

    A rank has ended a step after the sum of its step times up to it, which leave out the fetching of data. Their sum is
    the slowest rank's time. The sum of the longest times of single steps would be more where ranks do not wait for each
    other: those that meet a slow one in turn wait in turn, behind steps in which they had nobody to wait for.
    """
    ends = zip(*(accumulate(step["step"] for step in rank.seconds) for rank in result.ranks), strict=True)
    return [end - begin for begin, end in pairwise((0.0, *map(max, ends)))]


def _mean_phase(result: Result, phase: str) -> float:
    """Mean seconds of a phase over steps and ranks that train; an entry that stands for several is weighted by them."""
    counts = result.rank_counts or (1.0,) * len(result.ranks)
    trained = [(rank, count) for rank, count in zip(result.ranks, counts, strict=True) if rank.trains]
    return fmean([mean(step[phase] for step in rank.seconds) for rank, _ in trained], [count for _, count in trained])
