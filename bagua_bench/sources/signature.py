"""Reads from a class's source what its constructor accepts, without importing it (and thereby torch)."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bagua_bench.sources.closure import file_of


@dataclass(frozen=True)
class Argument:
    """What one constructor argument accepts: values of some plain types within bounds, or one of a few literals."""

    types: tuple[str, ...]
    choices: tuple[object, ...]
    items: tuple[Argument, ...] = ()
    """What a list holds; empty where it may hold anything."""
    least: float | None = None
    above: float | None = None

    def accepts(self, value: object) -> bool:
        """Whether a plain value from a configuration file fits."""
        if self.choices:
            return value in self.choices
        if isinstance(value, list) and self.items:
            return len(value) == len(self.items) and all(map(Argument.accepts, self.items, value))
        kinds = {"NoneType" if value is None else type(value).__name__}
        if kinds == {"int"}:
            kinds.add("float")
        return not self.types or bool(kinds & set(self.types))

    def problem(self, value: object) -> str:
        """What is wrong with a value; empty if nothing."""
        if not self.accepts(value):
            return f"expected {self}"
        if isinstance(value, int | float) and self.least is not None and value < self.least:
            return f"must be at least {self.least:g}"
        if isinstance(value, int | float) and self.above is not None and value <= self.above:
            return f"must be above {self.above:g}"
        return ""

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join("null" if choice is None else str(choice) for choice in self.choices)
        names = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a text", "list": "a list"}
        names["NoneType"] = "null"
        if self.items:
            names["list"] = f"[{', '.join(map(str, self.items))}]"
        return " or ".join(names.get(name, name) for name in self.types)


def source_of(target: str) -> Path:
    """The file that defines the class `package.module.Class`. ValueError if there is none."""
    module = target.rpartition(".")[0]
    path = file_of(module)
    if path is None:
        raise ValueError(f"_target_={target}: there is no module '{module}'")
    return path


@cache
def arguments(target: str) -> dict[str, Argument]:
    """Names and accepted values of the constructor's arguments of `package.module.Class`."""
    methods = [node for node in _class(target).body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if not methods:
        return {}
    given = methods[0].args
    return {a.arg: _argument(a.annotation) for a in [*given.args[1:], *given.kwonlyargs]}


@cache
def attributes(target: str) -> dict[str, Any]:
    """Attributes that the class `package.module.Class` sets to literals in its own body."""
    found = {}
    for node in _class(target).body:
        name = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(name, ast.Name) and node.value is not None:
            with suppress(ValueError):
                found[name.id] = ast.literal_eval(node.value)
    return found


def _class(target: str) -> ast.ClassDef:
    name = target.rpartition(".")[2]
    tree = ast.parse(source_of(target).read_text())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if not found:
        raise ValueError(f"_target_={target}: there is no class '{name}' in that module")
    return found[0]


def _argument(annotation: ast.expr | None) -> Argument:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Annotated"):
        assert isinstance(annotation.slice, ast.Tuple)
        kind, *bounds = annotation.slice.elts
        named = {ast.unparse(b.func).lower(): ast.literal_eval(b.args[0]) for b in bounds if isinstance(b, ast.Call)}
        return replace(_argument(kind), **named)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal"):
        elements = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return Argument((), tuple(ast.literal_eval(element) for element in elements))
    if isinstance(annotation, ast.Subscript):
        fixed = ast.unparse(annotation.value) == "tuple" and isinstance(annotation.slice, ast.Tuple)
        items = getattr(annotation.slice, "elts", []) if fixed and "..." not in ast.unparse(annotation) else []
        return Argument(("list",), (), tuple(map(_argument, items)))
    if isinstance(annotation, ast.BinOp):
        left, right = _argument(annotation.left), _argument(annotation.right)
        return Argument(left.types + right.types, left.choices + right.choices, left.items + right.items)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return Argument(("NoneType",), ())
    return Argument((annotation.id,) if isinstance(annotation, ast.Name) else (), ())
