"""Turns frozen dataclasses into plain JSON values and back by their type hints, without coercing any value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text", NoneType: "null"}


def dump(value: Any) -> Any:
    """Plain values. A field that is None is left out if None is its default.

    A dataclass may have a form of its own: `to_plain()` returns a mapping, which the class method
    `from_plain(given, path)` reads; `path` says where it is, for a ValueError.
    """
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if is_dataclass(value):
        given = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: dump(item) for f, item in given if not (item is None and f.default is None)}
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    return [dump(item) for item in value] if isinstance(value, list | tuple) else value


def load(kind: type[T], given: Any, path: str = "") -> T:
    """The `kind` that plain values stand for. ValueError, one line, for a key or value that does not fit."""
    found: T = _load(kind, given, path)
    return found


def _load(kind: Any, given: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return given
    if origin in (Union, UnionType):
        return None if given is None and NoneType in arguments else _one_of(arguments, given, path)
    if origin is Literal:
        return given if given in arguments else _refuse(path, given, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        _check(isinstance(given, list | tuple), path, given, "a list")
        return tuple(_load(arguments[0], item, f"{path}.{k}") for k, item in enumerate(given))
    if origin is Mapping:
        _check(isinstance(given, Mapping), path, given, "a mapping")
        return {key: _load(arguments[1], item, f"{path}.{key}") for key, item in given.items()}
    if is_dataclass(kind):
        _check(isinstance(given, Mapping), path, given, "a mapping")
        own: Any = getattr(kind, "from_plain", None)
        return own(given, path) if own is not None else _load_fields(kind, given, path)
    _check(_is(kind, given), path, given, _NAMES[kind])
    return given


def _load_fields(kind: Any, given: Mapping[str, Any], path: str) -> Any:
    hints, dot = _hints(kind), "." if path else ""
    for key in given:
        if key not in hints:
            raise ValueError(f"{path}{dot}{key}: no such key; allowed: {', '.join(hints)}")
    for f in fields(kind):
        if f.name not in given and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{path}{dot}{f.name}: is missing")
    return kind(**{key: _load(hints[key], item, f"{path}{dot}{key}") for key, item in given.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _one_of(kinds: tuple[Any, ...], given: Any, path: str) -> Any:
    for kind in kinds:
        if kind is not NoneType and (is_dataclass(kind) or get_origin(kind) or _is(kind, given)):
            return _load(kind, given, path)
    return _refuse(path, given, " or ".join(_NAMES[kind] for kind in kinds))


def _is(kind: Any, given: Any) -> bool:
    """Whether a value is of a plain type. An integer is also a number; true and false are not."""
    wanted = (int, float) if kind is float else kind
    return isinstance(given, wanted) and (kind is bool or not isinstance(given, bool))


def _check(fits: bool, path: str, given: Any, expected: str) -> None:
    if not fits:
        _refuse(path, given, expected)


def _refuse(path: str, given: Any, expected: str) -> Any:
    raise ValueError(f"{path}={given}: expected {expected}")
