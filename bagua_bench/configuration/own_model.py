"""What may be said of a model that a configuration describes instead of holding its code. No torch import."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell, TaskPart
from bagua_bench.sources.closure import file_of

LIBRARIES = ("torchvision", "transformers")
"""Libraries whose models can be named."""
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
_LEAST, _MOST = 1e3, 1e13  # parameters
_NAMED = re.compile(r"([\w.]+):(.+)")


def parameters_of(task: TaskPart) -> int | None:
    """How many parameters a described model has; None where it is named, or described by nothing.

    ValueError, one line, for what is no such number.
    """
    given = task.options.get("parameters")
    if given is None:
        return None
    try:
        number = units.parse("task.parameters", given, COUNTS)
    except ValueError:
        number = 0.0
    if not _LEAST <= number <= _MOST:
        raise ValueError(
            f"task.parameters={given}: allowed: a number from {_LEAST:g} to {_MOST:g}, as in 1.3e9 or 1.3B"
        )
    return round(number)


def problems(cell: Cell) -> Iterator[str]:
    """One line for each problem."""
    options = cell.task.options
    if not facts.task(cell.task).described:
        return
    given, model = options.get("parameters"), options.get("model")
    if (given is None) == (model is None):
        both = "" if given is None else f"{given}, task.model={model}"
        yield (
            f"task.parameters={both or 'null'}: task={cell.task.name} needs either task.parameters, as in 1.3e9, or "
            "task.model, as in torchvision:resnet50"
        )
        return
    try:
        parameters_of(cell.task)
    except ValueError as error:
        yield str(error)
    for key in ("length", "epoch"):
        if options.get(key) is not None and options[key] < 1:
            yield f"task.{key}={options[key]}: must be at least 1"
    if model is not None:
        yield from _model(model, cell.task)


def _model(model: str, task: TaskPart) -> Iterator[str]:
    parts = _NAMED.fullmatch(model)
    if parts is None:
        libraries = ", ".join(f"{name}:MODEL" for name in LIBRARIES)
        yield f"task.model={model}: allowed: {libraries}, or package.module:function"
        return
    module = parts[1]
    if module in LIBRARIES:
        if find_spec(module) is None:
            yield f"task.model={model}: needs {module}, which is not installed: pip install {module}"
        return
    here = str(Path.cwd())
    if here not in sys.path:  # as for `python -m`, also behind the command `bagua-bench`
        sys.path.append(here)
    if file_of(module) is None:
        yield f"task.model={model}: there is no module {module} here; allowed: {', '.join(LIBRARIES)} or your own"
    elif task.step_seconds is None:
        yield f"task.model={model}: what its step takes is not known; give task.step_seconds, as in 400ms"
