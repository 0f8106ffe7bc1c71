"""Finds the sources that a module depends on, and their hash, by reading them without importing anything.

Comments and docstrings do not change a hash. It covers the syntax tree of Python files, the text of C++ files without
comments, and every byte of tables.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OWN = ("algorithms", "tasks", "bagua_bench")
"""Packages whose imports are followed, in addition to the packages of the modules asked about."""

_NATIVE, _TABLES = (".cpp", ".h"), (".json",)
_STARTED = re.compile(r"bagua_bench(\.\w+)+")  # a separate process is started by its module's name
_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])')|//[^\n]*|/\*.*?\*/""", re.S)


def file_of(module: str) -> Path | None:
    """The source file of `package.module`; None if there is none. Nothing is imported, not even the package."""
    top, *rest = module.split(".")
    spec = find_spec(top) if top else None
    if spec is None:
        return None
    if not rest:
        return None if spec.origin is None else Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        place = Path(root, *rest)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.exists():
                return path
    return None


def closure(modules: Iterable[str]) -> dict[str, Path]:
    """Files by module: `modules`, all that they import or start, and the packages that contain these."""
    roots = tuple(modules)
    followed = {*OWN, *(name.partition(".")[0] for name in roots)}
    found: dict[str, Path] = {}
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        path = file_of(name) if name not in found and name.partition(".")[0] in followed else None
        if path is not None and path.suffix == ".py":
            found[name] = path
            waiting += [*_mentioned(path, name), *([name.rpartition(".")[0]] if "." in name else [])]
    return dict(sorted(found.items()))


@cache
def closure_hash(*modules: str) -> str:
    """Hash of what the modules depend on: Python files, and the C++ files and tables beside them."""
    digest = hashlib.sha256()
    found = closure(modules)
    for name, path in found.items():
        digest.update(name.encode() + b"\0" + _python(path) + b"\0")
    for other in sorted({file for path in found.values() for file in _beside(path.parent)}):
        digest.update(other.name.encode() + b"\0" + _other(other) + b"\0")
    return digest.hexdigest()[:12]


@cache
def _mentioned(path: Path, module: str) -> tuple[str, ...]:
    """Modules that a file may import or start, except those that only its own command line uses."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(name for node in _running(_tree(path)) for name in _names(node, package))


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those of `main` and below `if __name__ == "__main__"`, which compute no numbers, and for types."""
    for part in tree.body:
        is_main = isinstance(part, ast.FunctionDef) and part.name == "main"
        test = ast.unparse(part.test) if isinstance(part, ast.If) else ""
        if not is_main and "__main__" not in test and test != "TYPE_CHECKING":
            yield from ast.walk(part)


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _STARTED.fullmatch(node.value):
        yield node.value


@cache
def _tree(path: Path) -> ast.Module:
    """A file's syntax tree without docstrings, including those of attributes."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_text(statement)]
    return tree


def _is_text(statement: ast.AST) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@cache
def _python(path: Path) -> bytes:
    return ast.dump(_tree(path)).encode()


@cache
def _other(path: Path) -> bytes:
    if path.suffix not in _NATIVE:
        return path.read_bytes()
    lines = _COMMENT.sub(lambda match: match[1] or " ", path.read_text()).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


@cache
def _beside(folder: Path) -> tuple[Path, ...]:
    """C++ files and tables in a package's folder and in its subfolders that are not packages."""
    inner = [part for part in folder.iterdir() if part.is_dir() and not (part / "__init__.py").exists()]
    files = [path for path in folder.iterdir() if path.suffix in (*_NATIVE, *_TABLES)]
    return tuple(files) + tuple(path for part in inner for path in _beside(part))
