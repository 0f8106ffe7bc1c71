"""Whether a step makes the host wait for the GPU, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_STEP = "bagua_bench step"
_WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy")  # the last two match exactly: copies ending in Async do not wait


def traced(step: Callable[[], None]) -> list[str] | None:
    """Calls in a step that make the host wait for the GPU; None if the profiler sees no CUDA call at all."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace, record_function(_STEP):
        step()
    return waits(trace.events())


def waits(events: Iterable[Any]) -> list[str] | None:
    """Like `traced`, from events with a `name` and a `time_range`: calls that began within the step, sorted, once each.

    The profiler itself waits before and after the step.
    """
    listed = list(events)
    window = next(event.time_range for event in listed if event.name == _STEP)
    inside = {event.name for event in listed if window.start <= event.time_range.start <= window.end}
    if not any(name.startswith(("cudaLaunch", "cuLaunch")) for name in inside):
        return None
    return sorted(name for name in inside if name in _WAITS[1:] or (name.startswith("cu") and name.endswith(_WAITS[0])))


def nobody_waits(step: Callable[[], None]) -> str | None:
    """Take a step in which torch refuses to wait; returns its refusal, or None. A refused step may be incomplete."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None
