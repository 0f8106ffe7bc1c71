"""Programs of cells, kept from one advice to the next: they depend on no network and no times.

They lie in the user's cache folder, by what was rehearsed and the code that rehearsed it. Torch is imported only to
rehearse what is not there.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

from platformdirs import user_cache_path

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Program
from bagua_bench.simulate.scene import scene_of
from bagua_bench.sources.closure import OWN, closure_hash, file_of

_MOST_BYTES = 2**28


Key = tuple[str, str]
"""What a program depends on: a scene, and the code."""


def program_of(key: Key, channels: int) -> Program:
    """The program of a server's leader, for cells with this key."""
    return replace(_program(*key), channels=channels)


def is_known(key: Key) -> bool:
    """Whether there is such a program already."""
    return os.access(_file(*key), os.R_OK)


def tidy() -> None:
    """Remove the oldest programs, so that they do not take more than 256 MiB."""
    found = []
    for path in _folder().rglob("*"):
        with suppress(OSError):  # somebody else may have removed it
            state = path.stat()
            found += [(state.st_mtime, state.st_size, path)] if path.is_file() else []
    room = _MOST_BYTES
    for _, size, path in sorted(found, reverse=True):
        room -= size
        if room < 0:
            with suppress(OSError):  # or it is somebody else's
                path.unlink()


def key_of(cell: Cell) -> Key:
    """The key of a cell whose bucket size and channels are known."""
    code = [_sources(), _torch()]
    code += [closure_hash(module) for module in _foreign(cell)]
    if facts.task(cell.task).described:  # its code may be anywhere
        code.append(hashlib.sha256(repr(layers_of(cell.task)).encode()).hexdigest())
    return scene_of(cell, members=False).key, " ".join(code)


@cache
def _torch() -> str:
    return f"torch {version('torch')}"


@cache
def _sources() -> str:
    """A hash of every byte of the suite's sources and tables.

    It takes milliseconds, where `provenance.hashes`, which a comment does not change, parses them for a second.
    """
    digest = hashlib.sha256()
    for top in _tops():
        for path in sorted(top.rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _tops() -> list[Path]:
    """Folders of the suite's packages."""
    return [path.parent for path in map(file_of, OWN) if path is not None]


def _foreign(cell: Cell) -> list[str]:
    """Modules of an algorithm and a task that lie elsewhere."""
    modules = [part.target.rpartition(".")[0] for part in (cell.algo, cell.task)]
    places = [(module, file_of(module)) for module in modules]
    return [name for name, path in places if path is None or not any(path.is_relative_to(top) for top in _tops())]


@cache
def _program(scene: str, code: str) -> Program:
    path = _file(scene, code)
    with suppress(OSError, EOFError, pickle.UnpicklingError):  # there is none, or it is damaged
        return _read(path.read_bytes())
    from bagua_bench.simulate.rehearsal import rehearse_scene

    content = pickle.dumps(rehearse_scene(scene))
    with suppress(OSError):  # a full disk, or a home that may not be written: the next question rehearses it again
        _keep(path, content)
    return _read(content)


def _read(content: bytes) -> Program:
    found: Program = pickle.loads(content)
    return found


def _keep(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all: others may look at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix="part-", delete=False) as part:
        try:
            part.write(content)
            part.flush()
            Path(part.name).replace(path)
        except OSError:
            Path(part.name).unlink()
            raise


def _file(scene: str, code: str) -> Path:
    name = hashlib.sha256(f"{code}\0{scene}".encode()).hexdigest()
    return _folder() / f"{name}.pickle"


def _folder() -> Path:
    return user_cache_path("bagua-bench") / "programs"
