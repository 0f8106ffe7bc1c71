"""The steps of an elastic run on one rank: from the newest checkpoint to the last step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist

from bagua_bench.configuration.cell import RunPart
from bagua_bench.elastic.checkpoints import Checkpoints
from bagua_bench.elastic.course import Course
from bagua_bench.elastic.diary import BEGINS, TRAINS
from bagua_bench.engine.saved import Saved
from bagua_bench.engine.trainer import Trainer
from bagua_bench.results.result import RankResult
from bagua_bench.worker.counts import Counts
from bagua_bench.worker.loop import Loop
from bagua_bench.worker.progress import Progress
from tasks.base import Position, Task

_STRIDE = 1_000_003  # between the seeds of two steps, so that ranks of a new world repeat nobody's random numbers


def reporter(progress: Progress, trainer: Trainer, run: RunPart, samples: float) -> Callable[..., None]:
    """What a `Loop` calls after every step of `samples` samples."""

    def report(phase: str, step: int, loss: float, seconds: float) -> None:
        done, rate = _engine(trainer).steps, samples / seconds
        progress.say(TRAINS, step=done, steps=run.untimed + run.steps, loss=loss, rate=rate, at=time.monotonic())

    return report


def go_on(
    run: RunPart,
    task: Task,
    trainer: Trainer,
    loop: Loop,
    device: torch.device,
    progress: Progress,
    course: Course | None = None,
) -> RankResult:
    """Take the steps that are left; this rank's measurements of the timed ones among them, and the losses of all.

    course: of ranks that go on without a restart, where a checkpoint is for those who have lost all.
    """
    asked, engine, rank, size = run.elastic, _engine(trainer), dist.get_rank(), dist.get_world_size()
    assert asked is not None and asked.folder is not None
    checkpoints = Checkpoints(asked.folder, asked.every, asked.keep)
    torch.manual_seed(run.seed + 1 + rank)  # dropout differs between ranks
    last = run.untimed + run.steps
    if course is not None and course.steps:
        course.steps = min(course.steps, last - 1)  # a company that begins behind the last step takes that again
        engine.count_from(course.steps)
        kept = {"losses": course.extra[: course.steps], "position": asdict(course.position), "ranks": size}
    else:
        kept = checkpoints.restore(engine) or {"losses": [], "position": {}, "ranks": size}
    if course is not None or kept["ranks"] != size:
        torch.manual_seed(run.seed + 1 + rank + _STRIDE * engine.steps)
    if engine.steps >= last:
        raise ValueError(
            f"elastic.folder={asked.folder}: its newest checkpoint is of step {engine.steps}, and "
            f"run.steps={run.steps} leaves none to take; raise run.steps, or give another folder"
        )
    progress.say(BEGINS, ranks=size, after=engine.steps)
    position, losses, seconds = Position(**kept["position"]), list(kept["losses"]), list[dict[str, float]]()
    batches = task.resumed(rank, size, run.seed, position)
    counts: Counts | None = None
    if course is not None:
        course.steps, course.position, course.extra = engine.steps, position, losses
    while engine.steps < last:
        if engine.steps >= run.untimed and counts is None:
            counts = Counts(trainer, device)
        spent, lost = loop.take(batches, 1, TRAINS)
        seconds += spent if counts is not None else []
        losses += lost
        for _ in range(run.accumulate):
            position = position.after(size * task.batch, task.samples_per_epoch)
        if course is not None:
            course.stepped(run.accumulate)
        if checkpoints.due(engine) and engine.steps < last:
            checkpoints.save(engine, {"losses": losses, "position": asdict(position), "ranks": size})
    dist.barrier()
    assert counts is not None, "the last step is a timed one"
    return counts.result(seconds, losses)


def _engine(trainer: Trainer) -> Saved:
    assert isinstance(trainer, Saved), "no peer"
    return trainer
