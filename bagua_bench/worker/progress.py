"""Reports of a run to whoever watches it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Progress:
    """Passes events on, on rank 0 only; with None it does nothing."""

    def __init__(self, watch: Callable[[Event], None] | None) -> None:
        self._watch = watch

    def say(self, phase: str, **fields: float) -> None:
        """Report that the run is in `phase`."""
        if self._watch is not None:
            self._watch({"phase": phase, **fields})

    def stepper(self, samples: float, steps: Mapping[str, int]) -> Callable[[str, int, float, float], None]:
        """A function (phase, step, loss, seconds) that reports a step of `samples` samples.

        steps: how many steps a phase has, if that is known beforehand.
        """

        def report(phase: str, step: int, loss: float, seconds: float) -> None:
            total = {"steps": steps[phase]} if phase in steps else {}
            self.say(phase, step=step, **total, loss=loss, rate=samples / seconds)

        return report


def to_file(path: Path) -> Callable[[Event], None]:
    """Appends events to a file, one JSON object per line, for a process that reads it."""

    def append(event: Event) -> None:
        with path.open("a") as stream:
            stream.write(json.dumps(event) + "\n")

    return append
