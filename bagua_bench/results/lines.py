"""Lines of a file of records: parsed once where records have a part in common. No torch import."""

from __future__ import annotations

import json
import re
from typing import Any

from bagua_bench.results.schema_history import migrate

SHARED = ("config", "code", "machine", "environment", "network")
"""Parts of a record that others are likely to have in common with it."""
_KEY = re.compile(r'[ ]?"(\w+)":[ ]?')
_KEPT = 4096


class Parser:
    """Parses lines of JSON objects. A part that has been there before, letter for letter, is the same object again."""

    def __init__(self) -> None:
        self._value = json.JSONDecoder().raw_decode
        self._seen: dict[str, dict[str, dict[str, Any]]] = {key: {} for key in SHARED}
        self._next: dict[str, str] = {}

    def parse(self, line: bytes) -> dict[str, Any] | None:
        """The object in a line; None for a line that is not one whole object."""
        try:
            text = line.decode().strip()
            found = self._walk(text) or json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _walk(self, text: str) -> dict[str, Any] | None:
        """The object, part by part; None for one that is not written as `json.dumps` does. ValueError for no JSON."""
        found: dict[str, Any] = {}
        place, last = 1, None
        while (key := _KEY.match(text, place)) is not None:
            name, start = key[1], key.end()
            if last is not None:
                self._next[last] = f", {key[0].lstrip()}"
            found[name], place = self._part(name, text, start) if name in SHARED else self._value(text, start)
            last, place = name, place + 1
            if text[place - 1 : place] != ",":
                break
        return found if text[:1] == "{" and text[place - 1 :] == "}" else None

    def _part(self, name: str, text: str, start: int) -> tuple[Any, int]:
        """A part, and where it ends.

        It is looked up by the text up to the key that came behind it in the record before. What is kept is the text of
        a whole object, so that only another whole object is equal to it; wherever the guess is wrong, it is parsed.
        """
        seen = self._seen[name]
        end = text.find(self._next.get(name, ""), start)
        known = seen.get(text[start:end])
        if known is not None:
            return known, end
        value, end = self._value(text, start)
        if isinstance(value, dict) and len(seen) < _KEPT:
            seen[text[start:end]] = value
        return value, end


class Versions:
    """Migrates records; what becomes of a part that records share is shared by them again."""

    def __init__(self) -> None:
        self._migrated: dict[tuple[str, int], tuple[Any, Any]] = {}

    def migrate(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record in the current version. ValueError for an unknown version."""
        found = migrate(record)
        for name in SHARED:
            old, new = record.get(name), found.get(name)
            if new is not old:
                # Kept with the old part, so that its id stands for nothing else.
                _, known = self._migrated.setdefault((name, id(old)), (old, new))
                if known == new:
                    found[name] = known
        return found
