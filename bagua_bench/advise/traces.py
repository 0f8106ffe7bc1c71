"""Programs of cells, kept from one advice to the next: they depend on no network and no times.

They lie in the user's cache folder, by what was rehearsed and the code that rehearsed it. Torch is imported only to
rehearse what is not there.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from joblib import Memory
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
    return bool(_kept().check_call_in_cache(*key))


def tidy() -> None:
    """Remove the programs that were not used for longest, so that they do not take more than 256 MiB."""
    _memory().reduce_size(bytes_limit=_MOST_BYTES)


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
    found: Program = pickle.loads(_kept()(scene, code))
    return found


def _rehearse(scene: str, code: str) -> bytes:
    """A program as bytes, which are read much faster than an object that joblib has written."""
    from bagua_bench.simulate.rehearsal import rehearse_scene

    return pickle.dumps(rehearse_scene(scene))


@cache
def _memory() -> Memory:
    return Memory(user_cache_path("bagua-bench") / "programs", verbose=0)


@cache
def _kept() -> Any:
    return _memory().cache(_rehearse)
