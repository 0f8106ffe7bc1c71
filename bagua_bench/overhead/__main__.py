"""`bagua-bench overhead time`, `... memory` and `... optimizer`, followed by KEY=VALUE as in a run.

time: two ranks on this machine, without a network between them. In one pair of processes DDP, DDP once more and an
algorithm take steps in turn; shown is the median ratio of step times, with its 95 % interval, and DDP's to itself.
memory: every algorithm in fresh processes; its peak beside what its tensors need.
optimizer: in one process the plain loop over parameters, torch's foreach and fused, and fuse() take steps in turn, on a
model of 1,000 small tensors and on the parameters of tasks; shown is each one's time over the plain loop's. No data,
no gradients are computed. Large models need room for weights, gradients and the optimizer's state.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.explain import explain
from bagua_bench.configuration.resolve import ConfigError, register
from bagua_bench.configuration.validate import validate
from bagua_bench.console.rows import show, write
from bagua_bench.launch.servers import MALLOC
from bagua_bench.overhead import accounts
from bagua_bench.processes import together
from bagua_bench.processes.together import PartFailed

_BASE = ("mode=measure", "task.scale=cpu", "run.device=cpu", "cluster.servers=1", "cluster.ranks_per_server=2")
_ENGINES = ("run.bucket_size=", "run.channels=")
"""What is said to the engine is not said to peers."""
_RANKS = 2
_LIMITS = {"time": 1800.0, "alone": 1800.0, "memory": 1800.0, "optimizer": 6 * 3600.0}
"""Seconds for all steps of one task, or of all optimizers."""
_AT_ONCE = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Freed tensors return to the kernel at once, so that resident memory is what is in use."""


def main() -> int:
    """Exit code 0; 1 if a part failed, 2 if the configuration is wrong."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["time", "memory", "optimizer"])
    parser.add_argument("--tasks", type=_names, metavar="NAME,...", help="resnet50,vgg16; optimizer: bert_large")
    parser.add_argument(
        "--algos", type=_names, default="", metavar="NAME,...", help="time: gradient_allreduce, else all"
    )
    parser.add_argument("--rounds", type=int, default=40, help="steps of each system (default %(default)s)")
    parser.add_argument(
        "--scales", type=_names, default="tiny,cpu,paper", metavar="NAME,...", help="optimizer: of the tasks"
    )
    parser.add_argument(
        "--optimizers", type=_names, default="", metavar="NAME,...", help="optimizer: torch's, or package.module.Class"
    )
    parser.add_argument("--threads", type=int, default=1, help="optimizer: that compute (default %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results/overhead"), help="folder for time.json, ...")
    given, overrides = parser.parse_known_args()
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: must be at least 1")
    if given.threads < 1:
        parser.error(f"--threads {given.threads}: must be at least 1")
    if given.tasks is None:
        given.tasks = ["bert_large"] if given.part == "optimizer" else ["resnet50", "vgg16"]
    try:
        register()
        with initialize_config_dir(str(conf_folder.FOLDER), version_base=None):
            rows = {"time": _time, "memory": _memory, "optimizer": _optimizer}[given.part](given, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        chosen = [*(f"task={name}" for name in given.tasks), *(f"algo={name}" for name in given.algos)]
        print(explain(error, [*chosen, *overrides]), file=sys.stderr)
        return 2
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except PartFailed as error:
        print(error, file=sys.stderr)
        return 1
    write(given.results / f"{given.part}.json", rows)
    show(rows, accounts.COLUMNS[given.part])
    for line in accounts.advice(rows) if given.part == "optimizer" else ():
        print(line)
    return 0


def _names(text: str) -> list[str]:
    return text.split(",") if text else []


def _time(given: argparse.Namespace, overrides: Sequence[str]) -> list[dict[str, Any]]:
    ddp = facts.baseline()
    algos = given.algos or ["gradient_allreduce"]
    wanted = {task: [_cell(task, algo, overrides) for algo in (ddp, ddp, *algos)] for task in given.tasks}
    rows = []
    for task, cells in wanted.items():
        ranks = _run("time", cells, MALLOC, given.rounds)
        rows += accounts.times(task, [ddp, *algos], ranks)
    return rows


def _memory(given: argparse.Namespace, overrides: Sequence[str]) -> list[dict[str, Any]]:
    ddp = facts.baseline()
    known = conf_folder.names("algo")
    fit = [name for name in known if "measure" in facts.option(name).modes and facts.option(name).advised]
    algos = given.algos or [ddp, *(name for name in fit if name != ddp)]
    wanted = {
        (task, algo): [_cell(task, algo, [*overrides, f"task.scale={scale}"]) for scale in _scales(overrides)]
        for task in given.tasks
        for algo in algos
    }
    rows = []
    for task in given.tasks:
        plain = _run("alone", wanted[task, algos[0]], _AT_ONCE, 0, ranks=1)[0]
        for algo in algos:
            cells = wanted[task, algo]
            found = _run("memory", cells, _AT_ONCE, 0)
            state = facts.algorithm(cells[0].algo).state_bytes(plain["weights"], _RANKS)
            rows.append(accounts.memory(task, algo, max(found, key=lambda rank: rank["peak"]), plain, state))
    return rows


def _optimizer(given: argparse.Namespace, overrides: Sequence[str]) -> list[dict[str, Any]]:
    from bagua_bench.overhead import optimizers  # imports torch

    try:
        optimizers.known(given.optimizers)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    ddp = facts.baseline()
    cells = [_cell(task, ddp, [*overrides, f"task.scale={s}"]) for task in given.tasks for s in given.scales]
    more = {"optimizers": given.optimizers, "threads": given.threads}
    [found] = _run("optimizer", cells, MALLOC, given.rounds, ranks=1, more=more)
    return accounts.optimizers(found)


def _scales(overrides: Sequence[str]) -> tuple[str, str]:
    asked = [text.partition("=")[2] for text in overrides if text.startswith("task.scale=")]
    return (asked[-1] if asked else "cpu"), "tiny"


def _cell(task: str, algo: str, overrides: Sequence[str]) -> Cell:
    """The cell of a system. ConfigError if it cannot be run."""
    given = [text for text in overrides if not (text.startswith(_ENGINES) and facts.option(algo).peer)]
    cell = compose_cell([*_BASE, f"task={task}", f"algo={algo}", *given])
    validate(cell)
    if cell.mode != "measure" or cell.cluster.ranks != _RANKS or cell.transport.backend != "gloo":
        raise ConfigError(f"overhead: {_RANKS} measured ranks over gloo; leave out mode, cluster, network, transport")
    return cell


def _run(
    part: str, cells: Sequence[Cell], variables: dict[str, str], rounds: int, ranks: int = _RANKS, more: Any = None
) -> list[Any]:
    """What every process of a part found."""
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        request = {"part": part, "cells": [cell.to_json() for cell in cells], "ranks": ranks, "rounds": rounds}
        request |= more or {}
        (folder / "request.json").write_text(json.dumps(request))
        commands = [["-m", "bagua_bench.overhead.rank", name, str(rank)] for rank in range(ranks)]
        together.run(commands, folder / "logs", _LIMITS[part], {"OMP_NUM_THREADS": "1", **variables})
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    sys.exit(main())
