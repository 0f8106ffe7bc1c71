"""What one rank sends, needs and averages in its timed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bagua_bench.engine.trainer import Trainer
from bagua_bench.network import counters
from bagua_bench.processes.disturbance import Busy
from bagua_bench.results.result import Interface, RankResult
from bagua_bench.worker import memory


class Counts:
    """Counts from here on."""

    def __init__(self, trainer: Trainer, device: torch.device) -> None:
        self._trainer, self._device = trainer, device
        memory.reset_peak(device)
        self._cores = Busy()
        self._sent, self._on_wire = trainer.sent(), counters.sent()
        self._skipped = trainer.scale.skipped if trainer.scale is not None else 0
        if trainer.rounds is not None:
            trainer.rounds.reset()

    def result(self, seconds: Sequence[Mapping[str, float]], losses: Sequence[float]) -> RankResult:
        """What was counted, with the seconds of the steps since, and with losses."""
        trainer = self._trainer
        return RankResult(
            seconds=tuple(seconds),
            losses=tuple(losses) if trainer.trains else (),
            sent={key: value - self._sent[key] for key, value in trainer.sent().items()},
            metrics={},
            averaging=None if trainer.rounds is None else trainer.rounds.summary(),
            peak_memory=memory.peak(self._device),
            skipped_steps=None if trainer.scale is None else trainer.scale.skipped - self._skipped,
            trains=trainer.trains,
            busy=self._cores.share(),
            interface=Interface(**{key: value - self._on_wire[key] for key, value in counters.sent().items()}),
        )
