"""What else kept the cores of a timed run busy: other processes of the machine, and its hypervisor. No torch import."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

OTHERS = 0.05
"""Share of the cores' time from which on other processes are a disturbance. On a quiet machine they have below 0.01."""
STOLEN = 0.02
"""The same of time that a hypervisor gives to others."""


class _Counts(NamedTuple):
    at: float  # seconds
    busy: float  # CPU seconds of all processes on our cores
    stolen: float
    own: float  # CPU seconds of this process and all below it


class Disturbance:
    """Watches from its construction on. Interrupts count to nobody: most of them are the emulated network's."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._began = self._counts()

    def found(self) -> dict[str, Any]:
        """Cores that others kept busy on average, the share of time that was stolen, and flags, one line each."""
        began, now, cores = self._began, self._counts(), len(self._cores)
        seconds = max(now.at - began.at, 1e-3)
        others = max(0.0, now.busy - began.busy - (now.own - began.own)) / seconds
        stolen = max(0.0, now.stolen - began.stolen) / seconds / cores
        flags = []
        if others > OTHERS * cores:
            flags.append(f"other processes kept {others:.2g} of {cores} cores busy")
        if stolen > STOLEN:
            flags.append(f"the hypervisor gave {100 * stolen:.2g} % of the cores' time to others")
        return {"cores": cores, "others": others, "stolen": stolen, "flags": flags}

    def _counts(self) -> _Counts:
        known = psutil.cpu_times(percpu=True)
        ours = [known[core] for core in self._cores] if self._cores[-1] < len(known) else known
        busy = sum(core.user + core.nice + core.system for core in ours)
        return _Counts(time.monotonic(), busy, sum(core.steal for core in ours), _own())


class Busy:
    """Watches the cores of this process from its construction on."""

    def __init__(self) -> None:
        self._began = self._idle()

    def share(self) -> float:
        """Share of the cores' time that was used, by whatever: 0 to 1."""
        (began, idle), (now, later) = self._began, self._idle()
        return min(max(1 - (later - idle) / max(now - began, 1e-3), 0.0), 1.0)

    def _idle(self) -> tuple[float, float]:
        known, cores = psutil.cpu_times(percpu=True), sorted(os.sched_getaffinity(0))
        ours = [known[core] for core in cores] if cores[-1] < len(known) else known
        return time.monotonic(), sum(core.idle + core.iowait for core in ours) / len(ours)


def _own() -> float:
    """CPU seconds of this process's tree, those that have ended and been waited for among them."""
    this, total = psutil.Process(), 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended, and counts with its parent's children
            total += sum(process.cpu_times()[:4])
    return total
