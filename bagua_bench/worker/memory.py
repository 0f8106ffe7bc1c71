"""Peak memory of this process, on the host or on its GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def trim() -> None:
    """Return freed memory to the kernel (only with glibc)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def reset_peak(device: torch.device) -> None:
    """Count the peak from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: torch.device) -> int:
    """Largest memory in use since `reset_peak`, bytes: allocated tensors on a GPU, resident set on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM:")


def resident() -> int:
    """Memory in use now on the host, bytes."""
    return _status("VmRSS:")


def _status(key: str) -> int:
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(key) + 1]) * 1024
