"""Simulates a cell; the result has the form of a worker's in a measured run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.compute import Compute, compute_of, slow_factors, speed_classes
from bagua_bench.machine.loads import Loads, imbalance, of_steps, task_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Collective, Program
from bagua_bench.machine.scale import scale_model
from bagua_bench.results.result import (
    NOT_CHECKED,
    Averaging,
    RankResult,
    Reality,
    Result,
    Sending,
    in_order,
    with_traffic,
)
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.costs import seconds
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.timing import Timing

_MOST_STEPS = 1000
"""Limit on the steps in which averaging rounds can be applied."""


def simulate(cell: Cell) -> Result:
    """The result of a cell, in the form of `bagua_bench.worker.rank.train`; imports torch."""
    from bagua_bench.simulate.rehearsal import rehearse

    cell = scale_model(cell)
    layers, cluster = layers_of(cell.task, cell.shrink), cluster_of(cell)
    cell = settled(cell, cluster)
    program = rehearse(cell)
    compute = compute_of(cell, layers)
    ranks = cell.cluster.ranks
    least = facts.algorithm(cell.algo).rounds
    if program.round is not None:
        program = with_rounds(program, cluster, compute, least)
    loads = _loads(cell, len(program.steps))
    factors, members = _classes(cell, loads)
    timing = Clock(cluster, compute, factors, loads, bool(cell.run.trace)).run(program)
    entries, counts = _ranks(program, timing, members)
    averaging = None if program.round is None else _averaging(timing)
    return Result(
        ranks=entries,
        rank_counts=counts,
        checks=with_traffic(NOT_CHECKED, entries, ranks, averaging, least),
        samples_per_step=cell.task.batch * cell.run.accumulate * ranks,
        samples_per_epoch=layers.samples_per_epoch,
        synthetic=True,
        warmup_steps=0,
        parameters=layers.elements,
        emulation=_description(cluster, compute),
        averaging=averaging,
        sending=_sending(cell, program),
        imbalance=imbalance(loads),
    ).slowed(cell.haste)


def _loads(cell: Cell, steps: int) -> list[Loads] | None:
    """Of the timed steps."""
    run, untimed = cell.run, cell.run.untimed
    steps_taken = range(untimed, untimed + steps)
    return of_steps(task_of(cell.task), cell.cluster.ranks, run.seed, steps_taken, run.accumulate)


def _classes(cell: Cell, loads: list[Loads] | None) -> tuple[list[float], list[int]]:
    """Factors on computing time, and how many ranks have each; where loads differ, every rank is a class."""
    cluster = cell.cluster
    if loads is None:
        classes = speed_classes(cluster)
        return [*classes], [*classes.values()]
    slow = slow_factors(cluster)
    return [slow.get(rank, 1.0) for rank in range(cluster.ranks)], [1] * cluster.ranks


def _sending(cell: Cell, program: Program) -> Sending | None:
    """In the bytes of the configuration, which a scale model divides."""
    declared, size = facts.algorithm(cell.algo), cell.run.bucket_size
    if declared.peer:
        return None
    whole = None if declared.buckets or size is None else round(size * cell.shrink)
    return Sending(whole, program.buckets, program.channels)


def _averaging(timing: Timing) -> Averaging:
    if not timing.rounds:
        return Averaging(0, None, None)
    return Averaging(timing.rounds, timing.round_seconds if timing.rounds > 1 else None, timing.staleness)


def with_rounds(program: Program, cluster: Cluster, compute: Compute, least: int) -> Program:
    """The program of an algorithm that runs ASYNC, its last step repeated until `least` averages have arrived."""
    assert program.round is not None
    calls = (op for op in (*program.round.before, *program.round.exchange) if isinstance(op, Collective))
    period = program.round.pause + sum(seconds(op, cluster) for op in calls)
    steps = min(_MOST_STEPS, math.ceil(least * period / compute.step) + 3)
    return replace(program, steps=program.steps + program.steps[-1:] * (steps - len(program.steps)))


def step_seconds(program: Program, cluster: Cluster, compute: Compute, factors: Sequence[float] = (1.0,)) -> float:
    """Mean time of a step, seconds: of the slowest of the ranks whose computing takes `factors` times as long."""
    return mean_step(Clock(cluster, compute, factors).run(program))


def mean_step(timing: Timing) -> float:
    """Mean time of a step, seconds, of the slowest class of ranks."""
    return max(fmean(one["step"] for one in steps) for steps in zip(*timing.steps, strict=True))


def _ranks(program: Program, timing: Timing, classes: list[int]) -> tuple[tuple[RankResult, ...], tuple[float, ...]]:
    """One entry per class of computing speed and kind of rank, and how many ranks it stands for."""
    steps, total = len(timing.steps), sum(program.counts)
    rounds = timing.rounds if program.round is not None else 0
    entries: list[RankResult] = []
    counts: list[float] = []
    for k, members in enumerate(classes):
        for kind, number in enumerate(program.counts):
            share = members * number / total
            extra = program.sent_per_round[kind] if program.sent_per_round else {}
            sent = {key: value * steps + extra.get(key, 0.0) * rounds for key, value in program.sent[kind].items()}
            taken = tuple(step[k] for step in timing.steps)
            spans = in_order(timing.spans[k]) if timing.spans and not kind else ()  # the program is the leader's
            result = RankResult(seconds=taken, losses=(), sent=sent, metrics={}, peak_memory=None, spans=spans)
            entries.append(result)
            counts.append(share)
    return tuple(entries), tuple(counts)


def _description(cluster: Cluster, compute: Compute) -> Reality:
    """What is real in the result and what is modelled, for its record."""
    return Reality(
        real=("parameter shapes, autograd hooks, buckets, the engine's schedule and the algorithm's own calls",),
        emulated=(
            "time: a virtual clock charges computing, memory traffic and collectives",
            "values: nothing is computed or sent",
        ),
        step_seconds={"forward": compute.forward, "backward": compute.backward, "optimizer": compute.optimizer},
        step_seconds_from=compute.origin,
        physics=vars(cluster.physics),
    )
