"""Where the compiled parts of the transport are; outside its package, because importing that imports torch."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent / "transport"


def plugin() -> Path:
    """The transport itself, which is also NCCL's plugin. RuntimeError if it was not built."""
    return _built("libnccl-net-bagua.so")


def harness() -> Path:
    """The part of the harness that runs in its processes. RuntimeError if it was not built."""
    return _built("libbagua-net-harness.so")


def _built(name: str) -> Path:
    path = _FOLDER / name
    if not path.exists():
        raise RuntimeError(
            f"bagua_net needs {name}, which the installation did not build: no C++17 compiler was found, or it failed; "
            "install g++ and install this package again"
        )
    return path
