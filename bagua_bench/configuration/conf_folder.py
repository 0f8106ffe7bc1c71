"""Locates the configuration files without Hydra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bagua_bench.configuration import plain_yaml

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if folder.is_dir())
"""Inside the package when installed from a wheel, beside it in a checkout."""


def names(group: str) -> list[str]:
    """The options of a group."""
    return sorted(path.stem for path in (FOLDER / group).glob("*.yaml"))


def option(group: str, name: str) -> dict[str, Any]:
    """The keys in an option's file, merged over those of the options that its `defaults` name."""
    own = plain_yaml.read(FOLDER / group / f"{name}.yaml")
    whole: dict[str, Any] = {}
    for base in own.pop("defaults", ()):
        whole = _merged(whole, own if base == "_self_" else option(group, base))
    return whole or own


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    def value(key: str) -> Any:
        parts = [values[key] for values in (below, above) if key in values]
        return _merged(*parts) if len(parts) == 2 and all(isinstance(part, dict) for part in parts) else parts[-1]

    return {key: value(key) for key in {**below, **above}}
