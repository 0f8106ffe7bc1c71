"""NCCL's own loader of network plugins, called without a GPU.

NCCL looks a plugin's tables up when a communicator is made, which takes a GPU. The functions that do it do not: one
opens the library, and one per version of the interface looks for that table and returns one of NCCL's newest version,
which converts every call. They are not exported, but the library has a symbol table.
"""

from __future__ import annotations

import ctypes
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
_DEVICE = "cudaGetDevice"


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
    symbols = subprocess.run(["nm", str(library)], capture_output=True, text=True)
    rows = (line.split() for line in symbols.stdout.splitlines())
    places = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    look_ups = {int(found[1]): name for name in places if (found := _LOOK_UP.fullmatch(name))}
    if not {_LOAD, _EXPORTED, SOCKETS, _DEVICE} <= {*places} or not look_ups:
        reason = symbols.stderr.strip().splitlines()[-1:] or ["its symbol table has no loader of network plugins"]
        raise ValueError(f"{library}: {reason[0]}")
    chosen = {f"ncclNetPlugin_v{number}": places[name] for number, name in look_ups.items()}
    own = {"load": places[_LOAD], **{name: places[name] for name in (_EXPORTED, SOCKETS, _DEVICE)}}
    return Nccl(library, _version(library), {**chosen, **own}, tuple(sorted(look_ups)))


def _version(library: Path) -> str:
    number = ctypes.c_int()
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
