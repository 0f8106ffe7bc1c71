"""Says what is wrong with the keys of a task's data: where they come from, and which samples a rank gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell

DIGITS_TRAIN = 1437
"""Training samples of the bundled digits (`tasks.images`)."""


def problems(cell: Cell) -> Iterator[str]:
    """One line for each problem."""
    yield from _folder(cell)
    yield from _samples(cell)
    yield from _cache(cell)


def _folder(cell: Cell) -> Iterator[str]:
    data = cell.task.options.get("data")
    if data is None or cell.mode != "measure":
        return
    batch, ranks = cell.task.batch, facts.algorithm(cell.algo).workers(cell.cluster)
    samples = batch * ranks
    available = DIGITS_TRAIN
    if data != "digits":
        root = Path(data)
        for part in ("train", "val"):
            if not (root / part).is_dir():
                yield f"task.data={data}: allowed: digits, or a directory with train/CLASS/*.jpg and val/CLASS/*.jpg"
                return
        available = _count(root / "train", samples)
    if samples > available:
        yield (
            f"cluster.servers={cell.cluster.servers}: {ranks} ranks x task.batch={batch} need {samples} samples a "
            f"step, {data} has {available}; allowed: at most {available // batch} ranks"
        )


def _count(folder: Path, enough: int) -> int:
    """Number of files in the folders of `folder`, counted until there are enough."""
    found = 0
    for item in folder.glob("*/*"):
        found += item.is_file()
        if found >= enough:
            break
    return found


def _samples(cell: Cell) -> Iterator[str]:
    """Keys of generated sequences (`tasks.sequences`)."""
    given, batch = cell.task.options, cell.task.batch
    ranks = facts.algorithm(cell.algo).workers(cell.cluster)
    if not cell.task.uneven:
        for key, usual in (("batching", "mixed"), ("samples", None)):
            if given.get(key, usual) != usual:
                yield f"task.{key}={given[key]}: without a sampler samples are all alike; set task.sampler as well"
    elif given.get("samples") is not None and given["samples"] < batch * ranks:
        yield (
            f"task.samples={given['samples']}: {ranks} ranks x task.batch={batch} need {batch * ranks} samples a step; "
            "allowed: at least as many, or null"
        )


def _cache(cell: Cell) -> Iterator[str]:
    """The key `cache` (`tasks.loading.store`)."""
    given = cell.task.options
    place = given.get("cache")
    if place is None:
        return
    remote = place.startswith(("redis://", "rediss://", "unix://"))
    library, extra = ("redis", "redis") if remote else ("lmdb", "cache")
    if cell.mode != "measure":
        yield f"task.cache={place}: mode={cell.mode} loads no data; allowed: null"
    elif given.get("data") == "digits":
        yield f"task.cache={place}: the bundled digits cost nothing to load; allowed: null, or with task.data=DIR"
    elif "sampler" in given and not cell.task.uneven:
        yield f"task.cache={place}: without a sampler no sample comes twice; set task.sampler as well"
    elif find_spec(library) is None:
        yield f"task.cache={place}: needs {library}, which is not installed: pip install 'bagua-bench[{extra}]'"
    elif not remote and not _can_be_made(Path(place)):
        yield f"task.cache={place}: must be a folder that can be written to, or redis://HOST:PORT/DB"


def _can_be_made(folder: Path) -> bool:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
