"""Refuses keys that no group has: Hydra's plus adds any key to a configuration, however typed that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf

from bagua_bench.configuration.explain import allowed
from bagua_bench.configuration.schema import Config


def unknown_keys(config: DictConfig) -> Iterator[str]:
    """The keys that the schema does not have, one line each: the key, its value and what is allowed.

    What `task` and `algo` may have depends on their classes, and is checked with these.
    """
    yield from _unknown(Config, config, "")
    if isinstance(config.get("debug"), DictConfig):  # its options set other groups' keys, it has none
        for key, value in config.debug.items():
            yield f"debug.{key!s}={_text(value)}: no such key; allowed: none, as in debug=quick"


def _unknown(schema: type, config: DictConfig, path: str) -> Iterator[str]:
    hints = get_type_hints(schema)
    names = [field.name for field in fields(schema)]
    for key in config:
        value = config._get_node(key)
        name = str(key)
        where = f"{path}.{name}" if path else name
        if name not in names:
            yield f"{where}={_text(value)}: no such key; {allowed(name, names, f' in {path}' if path else '')}"
        elif isinstance(value, DictConfig) and not value._is_none():
            for kind in (hints[name], *get_args(hints[name])):
                if is_dataclass(kind):
                    yield from _unknown(kind, value, where)  # type: ignore[arg-type]


def _text(value: Any) -> str:
    return str(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
