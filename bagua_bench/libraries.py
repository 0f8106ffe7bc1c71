"""Locates the compiled transport. This module is outside the transport's package, whose import imports torch."""

from __future__ import annotations

from pathlib import Path

NAME = "libnccl-net-bagua.so"
_PLUGIN = Path(__file__).resolve().parent / "transport" / NAME


def plugin() -> Path:
    """Path of the transport's library, which is also NCCL's plugin. RuntimeError if it was not built."""
    if not _PLUGIN.exists():
        raise RuntimeError(
            f"bagua_net needs {_PLUGIN.name}, which the installation did not build: no C++17 compiler was found, or it "
            "failed; install g++ and install this package again"
        )
    return _PLUGIN
