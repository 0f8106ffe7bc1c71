"""Which cells are the same experiment: a hash of what matters in a cell's JSON. No torch import."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

_NOT_IDENTITY = {"run": ("results",), "algo": ("about",), "task": ("about", "cache")}
"""Keys of groups that are not part of the identity: where results and a cache are, and what is declared."""
_CAME_LATER: Mapping[str, Mapping[str, Any]] = {
    "run": {"channels": 1, "elastic": {"regroup": False}},
    "compute": {"haste": 1.0},
    "network": {
        "software_delay": False,
        "sites": 1,
        "wan": {"bandwidth": None, "latency": 0.0, "jitter": 0.0, "loss": 0.0},
    },
    "task": {"sampler": None, "batching": "mixed", "samples": None},
}
"""Keys that older versions did not have, with the value that stands for their behaviour."""


def identity(config: Mapping[str, Any]) -> str:
    """Hash of a cell's JSON, without where results go and what is declared.

    A key that came later does not change it while it has the value of before, so a cell keeps its id.
    """
    known = {key: _without(value, _NOT_IDENTITY.get(key, ())) for key, value in config.items()}
    return hashlib.sha256(json.dumps(_older(known, _CAME_LATER), sort_keys=True).encode()).hexdigest()[:12]


def _older(value: Any, later: Any) -> Any:
    """Some JSON without the keys that came later and have the value of before."""
    if not isinstance(value, dict) or not isinstance(later, Mapping):
        return value
    return {key: _older(item, later.get(key)) for key, item in value.items() if (key, item) not in later.items()}


def _without(value: Any, keys: Sequence[str]) -> Any:
    return {key: item for key, item in value.items() if key not in keys} if keys else value


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and values of all groups of a cell's JSON, without those that are not part of the identity."""
    flat: dict[str, Any] = {}
    for group, values in config.items():
        values = _without(values, _NOT_IDENTITY.get(group, ()))
        flat |= {f"{group}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {group: values}
    return flat
