"""The documentation as a site: `make docs`. Sphinx reads the repository's own pages, so that links work in both."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))

from tools import site_pages  # noqa: E402

project = "bagua-bench"
author = "the authors of bagua-bench"
root_doc = "README"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "results/README.md",
    "results/*/README.md",
    "notebooks/*.ipynb",
]
html_theme = "furo"
html_title = "bagua-bench"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": False}
default_role = "code"  # docstrings write `name`, as Markdown does

GENERATED = {"<!-- generated: keys -->": site_pages.keys, "<!-- generated: api -->": site_pages.api}


def complete(app: object, name: str, source: list[str]) -> None:
    """Fill in what is made from the code, and say how pages hang together, which their links do for other readers."""
    for mark, made in GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, made())
    if name == "README":
        source[0] += "\n```{toctree}\n:hidden:\n\ndocs/index\n```\n"
    if name == "docs/index":
        source[0] += "\n" + site_pages.tree(source[0])


def plain(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: only backticks mean anything."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def begin(app: Any, failure: Exception | None) -> None:
    """The site begins with the README."""
    if failure is None:
        text = '<!doctype html><meta http-equiv="refresh" content="0; url=README/"><a href="README/">bagua-bench</a>\n'
        (Path(app.outdir) / "index.html").write_text(text)


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete)  # type: ignore[attr-defined]
    app.connect("build-finished", begin)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", plain)  # type: ignore[attr-defined]
