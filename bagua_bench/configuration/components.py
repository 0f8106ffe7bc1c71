"""Makes the object that a configuration names: an algorithm, a peer, a task."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def build(target: str, options: Mapping[str, Any]) -> Any:
    """Instantiate the class `package.module.Class` with its options."""
    module, _, name = target.rpartition(".")
    return getattr(import_module(module), name)(**options)
