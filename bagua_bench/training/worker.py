"""One rank of a run: builds the task and the trainer from the resolved configuration, trains, measures, checks.

Started by torchrun as `python -m bagua_bench.training.worker FOLDER AGENT` (FOLDER holds config.json and receives
progress.jsonl and result.json; the rank ends with the process AGENT), or called in-process
where the job exists already.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from bagua_bench import facts
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.emulate.emulation import Emulation
from bagua_bench.launch.lifetime import die_with_parent
from bagua_bench.network import counters
from bagua_bench.training import devices, memory
from bagua_bench.training.build import build, make_trainer
from bagua_bench.training.checks import check_replicas
from bagua_bench.training.loop import Loop
from bagua_bench.training.progress import Progress
from bagua_bench.training.snapshot import Snapshot
from bagua_bench.training.trainer import Trainer
from bagua_bench.training.verdict import NOT_CHECKED, with_traffic
from bagua_bench.transport import environment as transport
from tasks.base import Batch, Task

_PATIENCE = 20
"""Times the steps asked for, in which enough averaging rounds should be applied."""


def train(config: dict[str, Any], progress: Progress) -> dict[str, Any] | None:
    """Run one cell in an existing torchrun or Slurm job; return the result on rank 0, None elsewhere."""
    run = config["run"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=run["timeout"]))
    try:
        device = devices.choose(run["device"])
        if config["transport"]["backend"] == "nccl":
            devices.share(device)
        transport.apply(config["transport"])
        comm = TorchComm.create(config["transport"]["backend"], run["timeout"], config["cluster"]["ranks_per_server"])
        emulation = Emulation(config, dist.get_rank()) if config["mode"] == "emulate" else None
        task: Task = build(config["task"]) if emulation is None else emulation.task
        torch.manual_seed(run["seed"])
        model = task.model().to(device)
        options = {} if emulation is None else {"arithmetic": emulation.arithmetic}
        with make_trainer(config, model, task.optimizer(model), comm, **options) as trainer:
            memory.trim()  # the parameters have moved into buckets
            if emulation is not None:
                emulation.attach(trainer)
            result = _measure(config, task, trainer, comm, device, progress)
            if result is not None and emulation is not None:
                result["emulation"] = emulation.description()
            return result
    finally:
        dist.destroy_process_group()


def _measure(
    config: dict[str, Any],
    task: Task,
    trainer: Trainer,
    comm: TorchComm,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any] | None:
    """Warm up, take the timed steps, check; the result on rank 0, None elsewhere."""
    run, rank, size, learns = config["run"], dist.get_rank(), dist.get_world_size(), config["mode"] == "measure"
    samples = task.batch * run["accumulate"] * size
    slowness = config["cluster"]["slow_ranks"].get(str(rank), 1.0) if learns else 1.0  # the emulation has its own
    declared = facts.algorithm(config)
    report = progress.stepper(samples, {"untimed": run["untimed"], "timed": declared.whole(run["steps"])})
    loop = Loop(trainer, task, device, run["accumulate"], report, slowness, run["precision"])
    warmup_steps = _warm_up(run, task, trainer, loop, learns) if run["warmup"] else 0
    torch.manual_seed(run["seed"] + 1 + rank)  # dropout differs between ranks
    own = _timed(run, declared, trainer, loop, task.batches(rank, size, run["seed"]), device)
    own["streams"] = transport.streams(config["transport"]) or comm.streams()
    with trainer.paused():
        progress.say("checking")
        checks = check_replicas(trainer.model, trainer.consensus) if learns else NOT_CHECKED
        own["metrics"] = task.evaluate(trainer.model) if run["evaluate"] and checks["passed"] else {}
    ranks = _gather(own)
    if ranks is None:
        return None
    averaging = _slowest(ranks)
    sent = sum(sum(one["sent"].values()) for one in ranks) if size > 1 else 1.0
    rounds = None if averaging is None or size == 1 else averaging["rounds"]
    return {
        "ranks": ranks,
        **({} if averaging is None else {"averaging": averaging}),
        "checks": with_traffic(checks, rounds, declared.rounds, sent, len(own["seconds"])),
        "samples_per_step": samples,
        "samples_per_epoch": task.samples_per_epoch,
        "synthetic": task.synthetic,
        "warmup_steps": warmup_steps,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }


def _timed(
    run: dict[str, Any],
    declared: facts.AlgorithmFacts,
    trainer: Trainer,
    loop: Loop,
    batches: Iterator[Batch],
    device: torch.device,
) -> dict[str, Any]:
    """Take the untimed and the timed steps; what this rank measured in the latter, and the losses of both.

    The timed steps are whole periods, and, of an algorithm that averages in rounds, as many more as these take.
    """
    _, early_losses = loop.take(batches, run["untimed"], "untimed")
    memory.reset_peak(device)
    sent = trainer.sent()
    skipped = trainer.scale.skipped if trainer.scale is not None else 0
    dist.barrier()
    on_wire = counters.sent()
    if trainer.rounds is not None:
        trainer.rounds.reset()
    steps = declared.whole(run["steps"])
    seconds, losses = loop.take(batches, steps, "timed")
    while len(seconds) < _PATIENCE * steps and _lacks(trainer, declared.rounds):
        more, their_losses = loop.take(batches, steps, "timed")
        seconds, losses = seconds + more, losses + their_losses
    dist.barrier()
    return {
        "interface": {key: value - on_wire[key] for key, value in counters.sent().items()},
        "seconds": seconds,
        "losses": early_losses + losses,
        "averaging": None if trainer.rounds is None else trainer.rounds.summary(),
        "sent": {key: value - sent[key] for key, value in trainer.sent().items()},
        "peak_memory": memory.peak(device),
        "skipped_steps": trainer.scale.skipped - skipped if trainer.scale is not None else None,
    }


def _lacks(trainer: Trainer, rounds: int) -> bool:
    """Whether some rank has applied fewer averaging rounds; collective. Of what has no rounds, no."""
    if trainer.rounds is None or dist.get_world_size() == 1:
        return False
    applied = torch.tensor([trainer.rounds.applied])
    dist.all_reduce(applied, dist.ReduceOp.MIN)
    return int(applied) < rounds


def _slowest(ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The averaging rounds of the rank that applied the fewest; None where there are none."""
    found = [one.pop("averaging") for one in ranks]
    return None if found[0] is None else min(found, key=lambda one: one["rounds"])


def _warm_up(run: dict[str, Any], task: Task, trainer: Trainer, loop: Loop, learns: bool) -> int:
    start = Snapshot(trainer.model) if learns else None
    steps = loop.warm_up(task.batches(dist.get_rank(), dist.get_world_size(), run["seed"]), run["warmup"])
    with trainer.paused():
        if start is not None:
            start.restore(trainer.model, trainer.optimizer)
        trainer.restart()
    return steps


def _gather(own: dict[str, Any]) -> list[dict[str, Any]] | None:
    everyone: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, everyone, dst=0)
    return everyone


@record
def main() -> None:
    """Entry point under torchrun."""
    die_with_parent(int(sys.argv[2]))
    folder = Path(sys.argv[1])
    result = train(json.loads((folder / "config.json").read_text()), Progress(folder / "progress.jsonl"))
    if result is not None:
        part = folder / "result.json.part"
        part.write_text(json.dumps(result))
        part.rename(folder / "result.json")


if __name__ == "__main__":
    main()
