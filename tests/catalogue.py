"""Everything that contract tests cover, found on disk."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.resolve import register

HOME = Path(__file__).resolve().parents[1]


def subclasses(package: str, base: type) -> list[type]:
    """All concrete subclasses of `base` defined in the package's modules."""
    found = []
    for path in sorted((HOME / package).glob("*.py")):
        module = import_module(f"{package}.{path.stem}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__:
                found += [] if inspect.isabstract(value) else [value]
    return found


def options(group: str) -> list[str]:
    """Names of a configuration group's files."""
    return sorted(path.stem for path in (FOLDER / group).glob("*.yaml"))


def trained() -> list[str]:
    """Tasks that can be trained, which those that are only described cannot."""
    return [name for name in options("task") if "measure" in facts.task(resolved(f"task={name}").task).modes]


def runnable() -> list[str]:
    """Algorithms and peers that can be run here rather than only simulated."""
    return [name for name in options("algo") if "measure" in declared(name).modes and absent(name) is None]


def absent(name: str) -> str | None:
    """What is not installed here and is needed to run an algorithm."""
    return facts.absent(resolved(f"algo={name}", "mode=simulate").algo)


def simulable() -> list[str]:
    """Algorithms and peers whose schedule the simulator knows."""
    return [name for name in options("algo") if "simulate" in declared(name).modes]


def peers() -> list[str]:
    """Systems of their own that can be run."""
    return [name for name in runnable() if declared(name).peer]


def algorithms() -> list[str]:
    """Algorithms that the engine runs."""
    return [name for name in options("algo") if not declared(name).peer]


def declared(name: str, *overrides: str) -> facts.AlgorithmFacts:
    """What an algorithm declares."""
    return facts.algorithm(resolved(f"algo={name}", *overrides, "mode=simulate").algo)


def short(name: str) -> list[str]:
    """Overrides with which a few steps show what an algorithm does."""
    return [f"algo.{key}={value}" for key, value in declared(name).short.items()]


def constructor(name: str) -> dict[str, Any]:
    """The constructor arguments in an algorithm's file."""
    return dict(resolved(f"algo={name}").algo.options)


def groups() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.yaml")))


@cache
def _register() -> None:
    register()


@cache
def resolved(*overrides: str) -> Cell:
    """The cell that the command line `overrides` stands for."""
    _register()
    with initialize_config_dir(str(FOLDER), version_base=None):
        return compose_cell(overrides)


def with_physics(cell: Cell, **physics: Any) -> Cell:
    """The cell on a cluster with these physical parameters."""
    return replace(cell, cluster=replace(cell.cluster, physics=physics))


def composed(*overrides: str) -> Any:
    _register()
    with initialize_config_dir(str(FOLDER), version_base=None):
        return compose("config", list(overrides))


def every_option() -> Iterator[tuple[str, str]]:
    for group in groups():
        for name in options(group):
            yield group, name
