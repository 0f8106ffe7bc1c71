"""Pages of the documentation that are made from the code: every key of the configuration, every public class."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

import bagua_bench
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.sources.signature import source_of

_GROUPS = ("task", "algo", "transport", "cluster", "network", "compute", "campaign", "debug")
PUBLIC = (
    "algorithms.base",
    "algorithms.primitives",
    "bagua_bench.comm.calls",
    "tasks.base",
    "tasks.loading",
)
"""Packages and modules for scripts of a user's own."""


def keys() -> str:
    """Every key of the configuration that has a meaning of its own, and every option of every group, as Markdown."""
    return "\n".join([*_described(), *(line for group in _GROUPS for line in _options(group))])


def _described() -> Iterator[str]:
    template = str(OmegaConf.load(FOLDER / "config.yaml").hydra.help.template)
    after = template.partition("$CONFIG\n")[2].partition("\n\n")[0]
    yield from ("## Keys", "", "| key | meaning |", "|---|---|")
    for line in after.splitlines():
        key, meaning = line.strip().split(None, 1)
        yield f"| `{key}` | {_plain(meaning)} |"
    yield ""


def _options(group: str) -> Iterator[str]:
    yield from (f"## {group}=", "")
    for path in sorted((FOLDER / group).glob("*.yaml")):
        text = path.read_text()
        options = OmegaConf.to_container(OmegaConf.create(text)) or {}
        assert isinstance(options, dict)
        yield from (f"### `{group}={path.stem}`", "", *_introduction(text, options), "")
        shown = {str(key): value for key, value in options.items() if key not in ("_target_", "about", "defaults")}
        if group != "campaign" and shown:
            yield from ("| key | value |", "|---|---|")
            yield from (f"| `{group}.{key}` | {_value(value)} |" for key, value in shown.items())
            yield ""


def _introduction(text: str, options: dict[Any, Any]) -> Iterator[str]:
    """The comment at the beginning of a file, or the docstring of the class that it names."""
    if "_target_" in options:
        tree = ast.parse(source_of(str(options["_target_"])).read_text())
        name = str(options["_target_"]).rpartition(".")[2]
        found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        yield from (ast.get_docstring(found) or "").splitlines()
        return
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").strip()


def _value(value: Any) -> str:
    shown = OmegaConf.to_yaml(value, resolve=False).strip() if isinstance(value, dict | list) else str(value)
    one_line = re.sub(r"\s*\n\s*", " ", "null" if value is None else shown)
    return f"`{one_line}`".replace("|", "\\|")


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def api() -> str:
    """Directives for Sphinx's autodoc, in Markdown."""
    own = [_directive(_kind(name), f"bagua_bench.{name}") for name in bagua_bench.__all__]
    modules = [f"## {name}\n\n{_directive('automodule', name)}" for name in PUBLIC]
    return "\n".join(["## bagua_bench", "", *own, *modules])


def _kind(name: str) -> str:
    return "autoclass" if inspect.isclass(getattr(bagua_bench, name)) else "autofunction"


def _directive(kind: str, name: str) -> str:
    members = "" if kind == "autofunction" else "   :members:\n   :member-order: bysource\n"
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n{members}```\n"


def tree(page: str) -> str:
    """The pages that a page of links names, as a tree for Sphinx: one for each of its sections."""
    found = []
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        targets = re.findall(r"\]\(([^)#\s]+?)(?:\.md|\.ipynb)\)", body)
        found.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *targets, "```", ""]))
    return "\n".join(found)
