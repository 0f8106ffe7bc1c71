"""A cell: one fully resolved configuration, and what names it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_NOT_IDENTITY = ("results",)
"""Keys of `run` that say where results go, not what is run."""


def world_size(cell: dict[str, Any]) -> int:
    """Number of ranks."""
    return int(cell["cluster"]["servers"] * cell["cluster"]["ranks_per_server"])


def cell_id(cell: dict[str, Any]) -> str:
    """Hash of the resolved configuration without paths of results: equal cells are the same experiment."""
    identity = {**cell, "run": {key: value for key, value in cell["run"].items() if key not in _NOT_IDENTITY}}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def flatten(cell: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys and values of all groups."""
    flat: dict[str, Any] = {}
    for group, values in cell.items():
        flat |= {f"{group}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {group: values}
    return flat


def label(cell: dict[str, Any]) -> str:
    """Short text for people."""
    return f"{cell['task']['name']} {cell['algo']['name']} over {cell['transport']['name']}, {world_size(cell)} ranks"
