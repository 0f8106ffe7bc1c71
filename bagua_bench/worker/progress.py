"""Reports of a run to the process that watches it: one JSON object per line, written by rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path


class Progress:
    """Appends to a file, on rank 0 only; without a file it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path if os.environ.get("RANK", "0") == "0" else None

    def say(self, phase: str, **fields: float) -> None:
        """Report that the run is in `phase`."""
        if self._path is not None:
            with self._path.open("a") as stream:
                stream.write(json.dumps({"phase": phase, **fields}) + "\n")

    def stepper(self, samples: float, steps: Mapping[str, int]) -> Callable[[str, int, float, float], None]:
        """A function (phase, step, loss, seconds) that reports a step of `samples` samples.

        steps: how many steps a phase has, if that is known beforehand.
        """

        def report(phase: str, step: int, loss: float, seconds: float) -> None:
            total = {"steps": steps[phase]} if phase in steps else {}
            self.say(phase, step=step, **total, loss=loss, rate=samples / seconds)

        return report
