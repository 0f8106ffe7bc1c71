"""Where the compiled transport is; outside its package, because importing that imports torch."""

from __future__ import annotations

from pathlib import Path

_PLUGIN = Path(__file__).resolve().parent / "transport/libnccl-net-bagua.so"


def plugin() -> Path:
    """The transport itself, which is also NCCL's plugin. RuntimeError if it was not built."""
    if not _PLUGIN.exists():
        raise RuntimeError(
            f"bagua_net needs {_PLUGIN.name}, which the installation did not build: no C++17 compiler was found, or it "
            "failed; install g++ and install this package again"
        )
    return _PLUGIN
