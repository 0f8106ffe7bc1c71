"""What of an engine is saved and restored: steps taken, the algorithm's state, and whole checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from algorithms.base import When
from bagua_bench.engine import checkpoint, state
from bagua_bench.engine.stepper import Stepper


class Saved(Stepper):
    """A stepper whose state outlives it; the subclass makes buckets and schedule."""

    _names: dict[Parameter, str]

    def state_dict(self) -> dict[str, Any]:
        """Steps taken and the algorithm's state on this rank, live; save it beside the model's and the optimizer's."""
        self._schedule.drain()
        own = {"steps": self.steps, "rank": self.comm.rank, "ranks": self.comm.size, "weights": self._fingerprint()}
        return {**own, "pending": self._schedule.pending, **state.collect(self.buckets, self._names)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from this rank's `state_dict()`, after model and optimizer were loaded; collective with averaging
        rounds.

        ValueError, with nothing changed, if it belongs to another rank, another number of ranks, another algorithm, or
        to other weights of this rank.
        """
        self.refuse_other_state(saved)
        if saved["weights"] not in (None, self._fingerprint()):
            raise ValueError(
                "checkpoint: this rank's weights are not those it was saved with; load the model after Engine is made, "
                "which gives all ranks rank 0's weights"
            )
        with self.paused():
            self._schedule.drain()
            self._watch.bring_home()
            self._start()
            state.restore(self.buckets, self._names, saved)
            self._schedule.resume(saved["pending"])
            self._begin(saved["steps"])

    def count_from(self, steps: int) -> None:
        """Let `steps` steps count as taken, before the first one: other ranks have taken them, or these, together."""
        with self.paused():
            self._begin(steps)

    def refuse_other_state(self, saved: Mapping[str, Any]) -> None:
        """ValueError, one line, if `load_state_dict` cannot take this."""
        if problem := state.problem(self.buckets, self._names, saved):
            raise ValueError(f"checkpoint: {problem}")
        own, alike = (self.comm.rank, self.comm.size), not any(b.state or b.each for b in self.buckets)
        if (saved["rank"], saved["ranks"]) != own and (self.consensus > 0 or not alike):
            raise ValueError(
                f"checkpoint: it is rank {saved['rank']}'s of {saved['ranks']}, this is rank {own[0]} of {own[1]}, and "
                "with this algorithm ranks differ; use engine.save(folder) and engine.load(folder), or begin anew"
            )

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and algorithm of all ranks, and each rank's `extra`, to a new folder; collective."""
        with self.paused():
            checkpoint.save(self, Path(folder), extra)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Continue from what `save` wrote; collective. Returns this rank's `extra`. ValueError if it does not fit."""
        with self.paused():
            return checkpoint.load(self, Path(folder))

    def settle(self) -> None:
        """Make the replicas equal for good, at the end of training; collective. Equal ones do not change."""
        with self.paused():
            self._schedule.drain()
            self._watch.bring_home()
            self._schedule.run(partial(self.algorithm.settle, self.buckets))
            self._begin(self.steps)

    def _fingerprint(self) -> list[float] | None:
        """Sums of this rank's weights; None where all ranks have the same, or weights may change at any time."""
        if self.consensus == 0 or When.ASYNC in self._schedule.moments:
            return None
        return [float(p.detach().sum(dtype=torch.float64)) for p in self._names if p.requires_grad]

    @abstractmethod
    def _start(self) -> None:
        """Go back before the first step; weights are equal on all ranks."""
