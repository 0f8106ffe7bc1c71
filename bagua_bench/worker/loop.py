"""The training loop of one rank: warm up until stable, start over, take the timed steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.engine.stopwatch import Stopwatch
from bagua_bench.engine.trace import Trace
from bagua_bench.engine.trainer import Trainer
from bagua_bench.worker import memory
from tasks.base import Batch, Task

_WINDOW = 3  # warm-up ends when this many steps in a row ...
_STABLE = 1.1  # ... differ by less than this factor
_PATIENCE = 4  # or after this many times the steps asked for


class Loop:
    """Takes steps of `accumulate` batches each; `report(step, loss, seconds)` is called after every one.

    precision: bf16 and fp16 run forward and loss under autocast; weights, gradients and messages stay float32. fp16
    needs the trainer's `scale`.
    A straggler's compute takes `slowness` times as long: before a step it waits for the extra time of the last one.
    trace: where phases of steps are noted.
    """

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        device: torch.device,
        accumulate: int,
        report: Callable[[str, int, float, float], None],
        slowness: float = 1.0,
        precision: str = "fp32",
        trace: Trace | None = None,
    ) -> None:
        self.trace = trace
        self._trainer, self._task, self._device = trainer, task, device
        self._accumulate, self._report = accumulate, report
        self._watch = Stopwatch(device, None if trace is None else trace.phase)
        self._slowness, self._delay = slowness, 0.0
        self._half = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def _step(self, batches: Iterator[Batch]) -> tuple[dict[str, float], float]:
        """One step: seconds by phase (without fetching data) and the loss."""
        number = self._accumulate if self._trainer.trains else 0
        fetched = [tuple(part.to(self._device) for part in next(batches)) for _ in range(number)]
        loss = self._train(fetched)
        spent = self._watch.stop()
        self._delay = (self._slowness - 1) * (spent["forward"] + spent["backward"] - self._delay)
        return spent, float(loss)

    def take(self, batches: Iterator[Batch], steps: int, phase: str) -> tuple[list[dict[str, float]], list[float]]:
        """Take steps; return the seconds by phase, and the loss, of each."""
        seconds, losses = [], []
        for k in range(1, steps + 1):
            spent, loss = self._step(batches)
            if self.trace is not None:
                self.trace.step_taken()
            seconds.append(spent)
            losses.append(loss)
            self._report(phase, k, loss, spent["step"])
        return seconds, losses

    def warm_up(self, batches: Iterator[Batch], least: int) -> int:
        """Take at least `least` steps, and more until their time is stable; return how many. All ranks agree."""
        recent: deque[float] = deque(maxlen=_WINDOW)
        for k in range(1, _PATIENCE * least + 1):
            spent, loss = self._step(batches)
            self._report("warm-up", k, loss, spent["step"])
            if k == 1:
                memory.trim()  # optimizer state and buffers exist now; making them took more memory than they need
            slowest = torch.tensor([spent["step"]])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            recent.append(float(slowest))
            if k >= least and len(recent) == _WINDOW and max(recent) < _STABLE * min(recent):
                return k
        return _PATIENCE * least

    def tune(self, batches: Iterator[Batch]) -> int:
        """Take steps while the trainer tunes itself; return how many."""
        steps = 0
        while self._trainer.tuning:
            spent, loss = self._step(batches)
            steps += 1
            self._report("autotuning", steps, loss, spent["step"])
        return steps

    def _train(self, batches: list[Batch]) -> Tensor:
        trainer, watch = self._trainer, self._watch
        total = torch.zeros((), device=self._device)
        watch.mark("forward")
        time.sleep(self._delay)
        for batch in batches:
            with nullcontext() if batch is batches[-1] else trainer.no_sync():
                if batch is not batches[0]:
                    watch.mark("forward")
                with torch.autocast(self._device.type, self._half, enabled=self._half is not None):
                    loss = self._task.loss(trainer.module, batch) / len(batches)
                watch.mark("backward")
                (loss if trainer.scale is None else trainer.scale.scaled(loss)).backward()
            total += loss.detach()
        watch.mark("communication", at=trainer.gradients_done)
        trainer.synchronize()
        watch.mark("optimizer")
        trainer.optimize()
        watch.mark("communication")
        trainer.finish_step()
        return total
