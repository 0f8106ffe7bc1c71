"""A cell: one fully resolved configuration, and what names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

_NOT_IDENTITY = {"run": ("results",), "algo": ("about",), "task": ("about",)}
"""Keys of groups that say where results go, or what is declared of what is run, but not what is run."""


def world_size(cell: dict[str, Any]) -> int:
    """Number of ranks."""
    return int(cell["cluster"]["servers"] * cell["cluster"]["ranks_per_server"])


def cell_id(cell: dict[str, Any]) -> str:
    """Hash of the resolved configuration without paths of results: equal cells are the same experiment."""
    identity = {key: _without(value, _NOT_IDENTITY.get(key, ())) for key, value in cell.items()}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def _without(value: Any, keys: Sequence[str]) -> Any:
    return {key: item for key, item in value.items() if key not in keys} if keys else value


def flatten(cell: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys and values of all groups, without those that are no part of the identity."""
    flat: dict[str, Any] = {}
    for group, values in cell.items():
        values = _without(values, _NOT_IDENTITY.get(group, ()))
        flat |= {f"{group}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {group: values}
    return flat


def label(cell: dict[str, Any]) -> str:
    """Short text for people."""
    return f"{cell['task']['name']} {cell['algo']['name']} over {cell['transport']['name']}, {world_size(cell)} ranks"
