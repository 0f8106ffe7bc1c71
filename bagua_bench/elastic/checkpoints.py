"""The checkpoints of a training run: one folder each, the newest of which the next start continues from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bagua_bench.engine import checkpoint
from bagua_bench.engine.saved import Saved

_NONE = -1


class Checkpoints:
    """Checkpoints in a folder that all ranks see; the newest `keep` stay.

    A checkpoint that was not finished, because a rank ended in the middle, does not count.

    every: steps from one `due` checkpoint to the next. ValueError, one line, for a number below 1.
    """

    def __init__(self, folder: str | Path, every: int = 100, keep: int = 2) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        self._folder, self.every, self._keep = Path(folder), every, keep

    def due(self, engine: Saved) -> bool:
        """Whether it is time for one, after a step of the engine."""
        return engine.steps % self.every == 0

    def save(self, engine: Saved, extra: Mapping[str, Any] | None = None) -> None:
        """Write one, with this rank's `extra` and the state of torch's random generators; collective."""
        place, first = self._folder / f"step-{engine.steps:09d}", engine.comm.rank == 0
        with engine.paused():
            if first:
                self._clear(place, *self._unfinished())  # of what a rank that ended has left
            engine.comm.barrier()
            engine.save(place, {"extra": dict(extra or {}), "random": _random(engine.comm.size)})
            engine.comm.barrier()
            if first:
                self._clear(*self.complete()[: -self._keep])

    def restore(self, engine: Saved) -> dict[str, Any] | None:
        """Continue from the newest one; collective. This rank's `extra`, or None if there is none.

        With another number of ranks than saved it, the algorithm's state follows `Algorithm.carry`, rank r gets the
        `extra` of rank r mod their number, and random generators stay as they are.
        """
        complete = [] if engine.comm.rank else self.complete()
        newest = torch.tensor([_step(complete[-1]) if complete else _NONE], device=engine.buckets[0].weight.device)
        with engine.paused():
            engine.comm.broadcast(newest)
            if newest.item() == _NONE:
                return None
            kept = engine.load(self._folder / f"step-{int(newest):09d}")
        if kept["random"]["ranks"] == engine.comm.size:
            torch.set_rng_state(kept["random"]["cpu"])
            if kept["random"]["cuda"]:
                torch.cuda.set_rng_state_all(kept["random"]["cuda"])
        extra: dict[str, Any] = kept["extra"]
        return extra

    def complete(self) -> list[Path]:
        """The folders of the complete ones, oldest first."""
        return sorted(path for path in self._folder.glob("step-*") if checkpoint.is_complete(path))

    def _unfinished(self) -> list[Path]:
        return [path for path in self._folder.glob("step-*") if not checkpoint.is_complete(path)]

    def _clear(self, *places: Path) -> None:
        """Remove checkpoints; none of them looks complete while parts of it are gone."""
        for place in places:
            if place.exists():
                place.rename(self._folder / f"removed-{place.name}-{time.time_ns()}")
        for doomed in self._folder.glob("removed-*"):
            shutil.rmtree(doomed, ignore_errors=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _random(ranks: int) -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return {"ranks": ranks, "cpu": torch.get_rng_state(), "cuda": cuda}
