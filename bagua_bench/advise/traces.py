"""Programs of cells, kept from one advice to the next: they depend on no network and no times.

They lie in the user's cache folder, by what was rehearsed and the code that rehearsed it. Torch is imported only to
rehearse what is not there.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any

from joblib import Memory
from platformdirs import user_cache_path

from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.program import Program
from bagua_bench.results.provenance import hashes
from bagua_bench.simulate.scene import scene_of

_MOST_BYTES = 2**28


def program_of(cell: Cell) -> Program:
    """The program of a server's leader, for a cell whose bucket size and channels are known."""
    assert cell.run.channels is not None
    return replace(_program(*_key(cell)), channels=cell.run.channels)


def is_known(cell: Cell) -> bool:
    """Whether there is such a program already."""
    return bool(_kept().check_call_in_cache(*_key(cell)))


def tidy() -> None:
    """Remove the programs that were not used for longest, so that they do not take more than 256 MiB."""
    _memory().reduce_size(bytes_limit=_MOST_BYTES)


def _key(cell: Cell) -> tuple[str, str]:
    code = hashes(replace(cell, mode="simulate"))
    return scene_of(cell, members=False).key, f"{' '.join(code.values())} torch {version('torch')}"


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
