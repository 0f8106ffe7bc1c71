"""One rank of a run: builds the task and the trainer from the resolved configuration, trains, measures, checks.

Started by torchrun as `python -m bagua_bench.worker.rank FOLDER AGENT`, or called in-process in an existing job. It
runs the cells FOLDER/0.json, 1.json and so on as they come, writes to progress-K.jsonl and result-K.json, and ends at a
cell that is null, or with the process AGENT.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.elastic.multiprocessing.errors import record

from bagua_bench.comm import devices
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell, RunPart
from bagua_bench.configuration.components import build
from bagua_bench.elastic.company import Company
from bagua_bench.elastic.course import Course
from bagua_bench.elastic.members import Members
from bagua_bench.emulate.emulation import Emulation
from bagua_bench.engine.schedule import perform
from bagua_bench.engine.trace import Trace, common_moment
from bagua_bench.engine.trainer import Trainer
from bagua_bench.layers.batch_norm import synchronize_batch_norms
from bagua_bench.machine import loads
from bagua_bench.processes import gate, mailbox
from bagua_bench.processes.lifetime import die_with_parent
from bagua_bench.results.result import NOT_CHECKED, RankResult, Result, Sending, with_traffic
from bagua_bench.transport import environment
from bagua_bench.worker import elastic, meeting, memory
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.checks import check_replicas
from bagua_bench.worker.counts import Counts
from bagua_bench.worker.loop import Loop
from bagua_bench.worker.progress import Progress, to_file
from bagua_bench.worker.snapshot import Snapshot
from tasks.base import Batch, Task

_PATIENCE, _LEAST_SECONDS = 20, 30.0
"""Limits on waiting for enough averaging rounds: a multiple of the requested steps, or this time if it is longer."""


def train(cell: Cell, progress: Progress) -> Result | None:
    """Run one cell in an existing torchrun or Slurm job; return the result on rank 0, None elsewhere."""
    run, transport = cell.run, cell.transport
    meeting.join(run.timeout)
    try:
        device = devices.choose(run.device)
        if transport.backend == "nccl":
            devices.share(device)
        environment.apply(transport)
        comm = TorchComm.create(transport.backend, run.timeout, cell.cluster.ranks_per_server)
        emulation = Emulation(cell, dist.get_rank()) if cell.mode == "emulate" else None
        task: Task = build(cell.task.target, cell.task.options) if emulation is None else emulation.task
        torch.manual_seed(run.seed)
        model = task.model().to(device)
        if task.sync_bn:
            model = synchronize_batch_norms(model, comm)
        how = perform if emulation is None else emulation.perform
        trace = Trace(device, lambda: environment.streams(transport) or comm.every_stream()) if run.trace else None
        with make_trainer(cell, model, task.optimizer(model), comm, how, trace) as trainer:
            memory.trim()  # the parameters have moved into buckets
            with nullcontext() if emulation is None else emulation.attached(trainer):
                result = _measure(cell, task, trainer, comm, device, progress, trace=trace)
            if result is not None and emulation is not None:
                return replace(result, emulation=emulation.description()).slowed(cell.haste)
            return result
    finally:
        dist.destroy_process_group()


def train_among_those_left(cell: Cell, progress: Progress, keep: Callable[[Result], None]) -> None:
    """Run one cell as a member that goes on with whoever is there.

    progress: has a watch on every rank; who is rank 0 changes. keep: called with the result, on one rank.
    """
    asked, device = cell.run.elastic, devices.choose(cell.run.device)
    assert asked is not None
    environment.apply(cell.transport)
    with Members(meeting.kept_store()) as members:
        task: Task = build(cell.task.target, cell.task.options)
        torch.manual_seed(cell.run.seed)
        model = task.model().to(device)
        optimizer = task.optimizer(model)
        course = Course(members, task.samples_per_epoch, task.batch)
        while (met := members.meet(asked.servers, cell.cluster.servers)) is not None:
            try:
                with Company(members, met, cell.transport.backend, cell.run.timeout) as company:
                    company.even_out(model, optimizer, course.steps > 0)
                    course.begin(met)
                    with make_trainer(cell, model, optimizer, company.comm) as trainer:
                        memory.trim()
                        watched = progress if met.rank == 0 else Progress(None)
                        result = _measure(cell, task, trainer, company.comm, device, watched, course)
                if result is not None:  # the others wait in the next meeting until it is kept
                    keep(result)
                    members.finish()
            except (RuntimeError, CheckpointException) as error:
                course.failed(error)


def _measure(
    cell: Cell,
    task: Task,
    trainer: Trainer,
    comm: TorchComm,
    device: torch.device,
    progress: Progress,
    course: Course | None = None,
    trace: Trace | None = None,
) -> Result | None:
    """Warm up, take the timed steps, check; the result on rank 0, None elsewhere."""
    run, size, learns = cell.run, dist.get_world_size(), cell.mode == "measure"
    declared = facts.algorithm(cell.algo)
    workers = size - cell.cluster.ranks + declared.workers(cell.cluster)  # of an elastic run, servers may be missing
    samples = task.batch * run.accumulate * workers
    warmup_steps, own = _trained(cell, task, trainer, device, progress, samples, course, trace)
    streams = environment.streams(cell.transport) or comm.streams()
    with trainer.paused():
        progress.say("checking")
        checks = check_replicas(trainer.model, trainer.consensus, trainer.trains) if learns else NOT_CHECKED
        metrics = task.evaluate(trainer.model) if run.evaluate and checks.passed and trainer.trains else {}
    ranks = _gather(replace(own, metrics=metrics, streams=_frozen(streams)))
    if ranks is None:
        return None
    averaging = None
    if ranks[0].averaging is not None:
        averaging = min((one.averaging for one in ranks if one.averaging), key=lambda found: found.rounds)
    return Result(
        ranks=ranks,
        checks=with_traffic(checks, ranks, size, averaging, 0 if run.elastic else declared.rounds),
        averaging=averaging,
        samples_per_step=samples,
        samples_per_epoch=task.samples_per_epoch,
        synthetic=task.synthetic,
        warmup_steps=warmup_steps,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        sending=_unscaled(trainer.sending, cell.shrink),
        study=trainer.study,
        imbalance=_imbalance(run, task, workers, len(ranks[0].seconds)),
    )


def _trained(
    cell: Cell,
    task: Task,
    trainer: Trainer,
    device: torch.device,
    progress: Progress,
    samples: int,
    course: Course | None,
    trace: Trace | None,
) -> tuple[int, RankResult]:
    """Warm up and take the timed steps, of so many samples each: how many steps the warm-up took, and this rank's own.

    An elastic run takes those that are left, and has no warm-up.
    """
    run, rank, learns = cell.run, dist.get_rank(), cell.mode == "measure"
    place = rank if course is None else meeting.server()
    slowness = cell.cluster.slow_ranks.get(str(place), 1.0) if learns else 1.0  # the emulation has its own
    if run.elastic is not None:
        report = elastic.reporter(progress, trainer, run, samples)
        loop = Loop(trainer, task, device, run.accumulate, report, slowness, run.precision)
        return 0, elastic.go_on(run, task, trainer, loop, device, progress, course)
    declared = facts.algorithm(cell.algo)
    report = progress.stepper(samples / cell.haste, {"untimed": run.untimed, "timed": declared.whole(run.steps)})
    loop = Loop(trainer, task, device, run.accumulate, report, slowness, run.precision, trace)
    workers = declared.workers(cell.cluster)
    warmup_steps = _warm_up(run, task, trainer, loop, learns, workers) if run.warmup or run.autotune else 0
    torch.manual_seed(run.seed + 1 + rank)  # dropout differs between ranks
    return warmup_steps, _timed(run, declared, trainer, loop, _batches(task, run, workers), device)


def _batches(task: Task, run: RunPart, workers: int) -> Iterator[Batch]:
    """This rank's, one of so many that take any."""
    rank = dist.get_rank()
    return task.batches(rank, workers, run.seed) if rank < workers else iter(())


def _imbalance(run: RunPart, task: Task, size: int, steps: int) -> float | None:
    """Of the work in the timed steps."""
    timed = range(run.untimed, run.untimed + steps)
    return loads.imbalance(loads.of_steps(task, size, run.seed, timed, run.accumulate))


def _unscaled(sending: Sending | None, factor: float) -> Sending | None:
    """In the bytes of the configuration, which a scale model divides."""
    if sending is None or sending.bucket_size is None:
        return sending
    return replace(sending, bucket_size=round(sending.bucket_size * factor))


def _frozen(streams: dict[str, list[dict[str, float]]] | None) -> dict[str, tuple[dict[str, float], ...]] | None:
    return None if streams is None else {peer: tuple(counted) for peer, counted in streams.items()}


def _timed(
    run: RunPart,
    declared: facts.AlgorithmFacts,
    trainer: Trainer,
    loop: Loop,
    batches: Iterator[Batch],
    device: torch.device,
) -> RankResult:
    """Take the untimed and the timed steps; return this rank's measurements of the latter, and the losses of both.

    The timed steps are whole periods; an algorithm that averages in rounds gets more until enough rounds are applied.
    """
    _, early_losses = loop.take(batches, run.untimed, "untimed")
    devices.settle(device)  # weights that go out once more after the warm-up are no part of the timed steps
    dist.barrier()
    counts = Counts(trainer, device)
    if loop.trace is not None:
        loop.trace.start(common_moment(device))
    steps = declared.whole(run.steps)
    seconds, losses = loop.take(batches, steps, "timed")
    soon = time.monotonic() + _LEAST_SECONDS
    while _goes_on(trainer, declared.rounds, len(seconds) < _PATIENCE * steps or time.monotonic() < soon):
        more, their_losses = loop.take(batches, steps, "timed")
        seconds, losses = seconds + more, losses + their_losses
    dist.barrier()
    own = counts.result(seconds, [*early_losses, *losses])
    return own if loop.trace is None else replace(own, spans=loop.trace.spans(), carried=loop.trace.carried())


def _goes_on(trainer: Trainer, rounds: int, patient: bool) -> bool:
    """Whether some rank has applied fewer than `rounds` averaging rounds, and all are `patient`; collective."""
    if trainer.rounds is None or dist.get_world_size() == 1:
        return False
    both = torch.tensor([trainer.rounds.applied, int(patient)])
    dist.all_reduce(both, dist.ReduceOp.MIN)
    applied, everyone_is = both.tolist()
    return bool(applied < rounds and everyone_is)


def _warm_up(run: RunPart, task: Task, trainer: Trainer, loop: Loop, learns: bool, workers: int) -> int:
    start = Snapshot(trainer.model) if learns else None
    batches = _batches(task, run, workers)
    steps = loop.tune(batches) + loop.warm_up(batches, run.warmup)
    with trainer.paused():
        if start is not None:
            start.restore(trainer.model, trainer.optimizer)
        trainer.restart()
    return steps


def _gather(own: RankResult) -> tuple[RankResult, ...] | None:
    everyone: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, everyone, dst=0)
    return None if everyone is None else tuple(everyone)


def _cells(folder: Path) -> Iterator[tuple[int, Cell]]:
    """The cells to run, with their numbers, as their files appear."""
    for number in count():
        config = mailbox.wait(folder / f"{number}.json")
        if config is None:
            return
        yield number, Cell.from_json(config)


@record
def main() -> None:
    """Entry point under torchrun."""
    die_with_parent(int(sys.argv[2]))
    folder = Path(sys.argv[1])
    for number, cell in _cells(folder):
        watch = to_file(folder / f"progress-{number}.jsonl") if os.environ["RANK"] == "0" else None

        def keep(result: Result, place: Path = folder / f"result-{number}.json") -> None:
            mailbox.post(place, result.to_json())

        if cell.run.elastic is not None and cell.run.elastic.regroup:
            train_among_those_left(cell, Progress(watch), keep)
            continue
        if int(os.environ["WORLD_SIZE"]) < cell.cluster.ranks:  # a server is late, or lost
            gate.pass_as_few(folder)
        if (result := train(cell, Progress(watch))) is not None:
            keep(result)


if __name__ == "__main__":
    main()
