"""NCCL's own loader of network plugins, called without a GPU.

NCCL looks a plugin's tables up when a communicator is made, which takes a GPU. The functions that do it do not: one
opens the library, and one per version of the interface looks for that table and returns one of NCCL's newest version,
which converts every call. They are not exported, but the library has a symbol table.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOAD = "_Z20ncclOpenNetPluginLibPKc"
_LOOK_UP = re.compile(r"_Z\d+getNcclNet_v(\d+)Pv")
_EXPORTED = "ncclGetVersion"
SOCKETS = "ncclNetSocket"
"""NCCL's own transport over TCP: a table of the newest version."""
_OF_SOCKETS = (SOCKETS, "cudaGetDevice")


@dataclass(frozen=True)
class Nccl:
    """A library: its version, where its functions lie, and which versions of the interface it knows."""

    library: Path
    version: str
    places: dict[str, int]
    interfaces: tuple[int, ...]

    def told(self) -> dict[str, Any]:
        """What a worker has to know of it."""
        return {"nccl": str(self.library), "places": self.places, "newest": self.interfaces[-1]}


def installed() -> Path | None:
    """The library of the package nvidia-nccl-cu12, or -cu13, of this environment."""
    found = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    return found if found.exists() else None


def read(library: Path) -> Nccl:
    """ValueError, one line, if it is not NCCL's library, or lacks what its loader is found by."""
    places = _symbols(library)
    look_ups = {int(found[1]): name for name in places if (found := _LOOK_UP.fullmatch(name))}
    if not {_LOAD, _EXPORTED} <= {*places} or not look_ups:
        raise ValueError(f"{library}: its symbol table has no loader of network plugins")
    chosen = {f"ncclNetPlugin_v{number}": places[name] for number, name in look_ups.items()}
    own = {name: places[name] for name in (_EXPORTED, *_OF_SOCKETS) if name in places}
    return Nccl(library, _version(library), {**chosen, **own, "load": places[_LOAD]}, tuple(sorted(look_ups)))


def lacks_sockets(nccl: Nccl) -> str:
    """Why NCCL's own sockets cannot be driven, or an empty text."""
    if platform.machine() != "x86_64":
        return "NCCL's own sockets are driven on x86-64 only"
    missing = [name for name in _OF_SOCKETS if name not in nccl.places]
    return f"{nccl.library}: no {', '.join(missing)} in its symbol table" if missing else ""


def _symbols(library: Path) -> dict[str, int]:
    """Names and places of what a library defines."""
    try:
        found = subprocess.run(["nm", str(library)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        raise ValueError(f"{library}: nm, which reads its symbols, is not here (Debian's package binutils)") from None
    rows = (line.split() for line in found.stdout.splitlines())
    places = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    if not places:
        raise ValueError(f"{library}: {(found.stderr.strip().splitlines() or ['no symbols'])[-1]}")
    return places


def _version(library: Path) -> str:
    number = ctypes.c_int()
    try:
        ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number))
    except OSError as error:
        raise ValueError(f"{library}: {error}") from None
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
