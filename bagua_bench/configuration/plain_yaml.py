"""Reads the suite's own option files without a YAML library: check-gpu runs on machines that have none.

It supports keys with scalars, or with [lists] and {mappings} on the same line, and one level of indentation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_WORDS = {"true": True, "false": False, "null": None}
_TOKEN = re.compile(r'\s*(?:"([^"]*)"|([\[\]{}:,])|((?:\$\{[^}]*(?:\}[^}]*)?\}|[^\[\]{}:,"])+))')


def read(path: Path) -> dict[str, Any]:
    """The contents of the file; interpolations stay as they are written."""
    found: dict[str, Any] = {}
    into = found
    for line in path.read_text().splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not text:
            continue
        key, _, value = text.strip().partition(":")
        if not text.startswith(" "):
            into = found
        into[key] = _flow(value) if value.strip() else {}
        if not value.strip():
            into = into[key]
    return found


def _flow(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("[", "{")):
        return text[1:-1] if text.startswith('"') else _scalar(text)
    tokens = [(quoted, mark, word) for quoted, mark, word in _TOKEN.findall(text)]
    return _value(tokens)


def _value(tokens: list[tuple[str, str, str]]) -> Any:
    """The value at the front of the tokens; its tokens are removed."""
    quoted, mark, word = tokens.pop(0)
    if mark == "[":
        items = []
        while tokens[0][1] != "]":
            items.append(_value(tokens))
            if tokens[0][1] == ",":
                tokens.pop(0)
        tokens.pop(0)
        return items
    if mark == "{":
        pairs = {}
        while tokens[0][1] != "}":
            key = tokens.pop(0)[2].strip()
            tokens.pop(0)  # the colon
            pairs[key] = _value(tokens)
            if tokens[0][1] == ",":
                tokens.pop(0)
        tokens.pop(0)
        return pairs
    return quoted or _scalar(word.strip())


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
