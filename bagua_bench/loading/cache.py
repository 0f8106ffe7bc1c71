"""How long an epoch of loading takes without a cache, the first time with one, and afterwards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.processes import together

COLUMNS = {
    "task": "{task}",
    "samples": "{samples}",
    "ranks": "{ranks}",
    "without a cache, s": "{plain:.2f}",
    "epoch 1": "{first:.2f}",
    "epoch 2": "{second:.2f}",
    "epoch 2, times as fast": "{factor:.2f}",
    "MB kept": "{megabytes:.0f}",
    "rounds": "{rounds}",
}
"""Titles and formats of the table; seconds are medians over the rounds, of the slowest rank."""

_BASE = ("mode=measure", "run.device=cpu", "cluster.servers=1", "cluster.ranks_per_server=2", "task.scale=paper")
_LIMIT = 1800.0  # seconds for one run of all ranks
_EPOCHS = 2


def rows(tasks: Sequence[str], overrides: Sequence[str], samples: int, rounds: int) -> list[dict[str, Any]]:
    """A row per task, of about so many samples; images are generated unless `task.data` names a folder.

    ConfigError for a task that has no cache; PartFailed if a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        cells = [_cell(task, overrides, samples, folder) for task in tasks]  # all are checked before any is run
        return [_row(cell, folder, rounds) for cell in cells]


def _cell(task: str, overrides: Sequence[str], samples: int, folder: Path) -> Cell:
    """A task with so many samples that every rank has as many whole batches in each epoch."""
    given = [*_BASE, f"task={task}", *overrides]
    cell = compose_cell(given)
    options = cell.task.options
    if "cache" not in options:
        raise ConfigError(f"task={task}: has no cache; allowed: tasks with task.cache")
    step = cell.task.batch * cell.cluster.ranks
    whole = max(1, samples // step) * step
    if "sampler" in options:
        given += [f"task.sampler={options['sampler'] or 'random'}", f"task.samples={whole}"]
    elif options["data"] == "digits":
        from bagua_bench.loading.images import make_images  # imports torch

        made = folder / f"images-{whole}"
        make_images(made, whole)
        given.append(f"task.data={made}")
    cell = compose_cell([*given, f"task.cache={folder / 'checked'}"])
    validate(cell)
    return compose_cell(given)


def _row(cell: Cell, folder: Path, rounds: int) -> dict[str, Any]:
    plain, first, second, kept = [], [], [], 0
    for number in range(rounds):
        place = folder / f"{cell.task.name}-{number}"
        plain += _epochs(cell, folder, None)
        one, two = _epochs(cell, folder, place)
        first.append(one)
        second.append(two)
        kept = (place / "data.mdb").stat().st_size
        for path in place.iterdir():  # the disk need not hold those of all rounds
            path.unlink()
    step = cell.task.batch * cell.cluster.ranks
    return {
        "task": cell.task.name,
        "samples": _steps(cell, folder) * step,
        "ranks": cell.cluster.ranks,
        "plain": median(plain),
        "first": median(first),
        "second": median(second),
        "factor": median(plain) / median(second),
        "megabytes": kept / 1e6,
        "rounds": rounds,
        "seconds": {"without": plain, "first": first, "second": second},
    }


def _steps(cell: Cell, folder: Path) -> int:
    steps: int = json.loads((folder / "0.json").read_text())["steps"]
    return steps


def _epochs(cell: Cell, folder: Path, cache: Path | None) -> list[float]:
    """Seconds of every epoch of loading, of the slowest rank."""
    ranks = cell.cluster.ranks
    request = {"cell": cell.to_json(), "cache": None if cache is None else str(cache), "epochs": _EPOCHS}
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "meeting").unlink(missing_ok=True)
    commands = [["-m", "bagua_bench.loading.rank", str(folder), str(rank)] for rank in range(ranks)]
    together.run(commands, folder / "logs", _LIMIT, {"OMP_NUM_THREADS": "1"})
    found = [json.loads((folder / f"{rank}.json").read_text())["seconds"] for rank in range(ranks)]
    return [max(epoch) for epoch in zip(*found, strict=True)]
