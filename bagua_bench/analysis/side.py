"""One side of a comparison: `PATH[:WHICH][@COMMIT]`. No torch import."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from bagua_bench.analysis import files, frame
from bagua_bench.results import records
from bagua_bench.results.records import Record

_FORM = re.compile(r"(?P<path>.+?)(:(?P<which>[^:@]+))?(@(?P<commit>[0-9a-f]{4,40}))?")
_ID = re.compile(r"[0-9a-f]{4,12}")


@dataclass(frozen=True)
class Side:
    """The finished records of one side, by cell, and the settings by which they were chosen."""

    text: str
    cells: dict[str, list[Record]]
    keys: tuple[str, ...]
    around: list[list[Record]]
    """Every cell at its path, chosen or not."""


def side(text: str) -> Side:
    """The side that a text stands for: the newest code of each campaign, or one commit's.

    ValueError, one line, if there is no such record.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"{text!r}: expected PATH, PATH:CELL, PATH:KEY=VALUE,... or one of these and @COMMIT")
    which, commit = form["which"], form["commit"]
    found = files.read(form["path"])
    if commit is not None:
        known = dict.fromkeys(_commit(record)[:12] for record in found)
        found = [record for record in found if _commit(record).startswith(commit)]
        if not found:
            raise ValueError(f"{text}: no record of commit {commit}; there are: {_short(', '.join(known))}")
    campaigns: dict[str, list[Record]] = {}
    for record in found:
        campaigns.setdefault(record["campaign"], []).append(record)
    done = [record for group in campaigns.values() for record in records.latest(group)]
    if not done:
        raise ValueError(f"{text}: none of {len(found)} runs is done")
    chosen, keys = (done, ()) if which is None else _chosen(text, done, which)
    return Side(text, _by_cell(chosen), keys, list(_by_cell(done).values()))


def _by_cell(found: list[Record]) -> dict[str, list[Record]]:
    cells: dict[str, list[Record]] = {}
    for record in found:
        cells.setdefault(record["cell"], []).append(record)
    return cells


def _commit(record: Record) -> str:
    return (record["code"]["git"] or {}).get("commit") or "none"


def _chosen(text: str, found: list[Record], which: str) -> tuple[list[Record], tuple[str, ...]]:
    if "=" not in which:
        same = [record for record in found if record["cell"].startswith(which)]
        if not same or not _ID.fullmatch(which):
            known = ", ".join(dict.fromkeys(record["cell"] for record in found))
            raise ValueError(f"{text}: no cell {which}; there are: {_short(known)}; or choose by KEY=VALUE")
        return same, ()
    keys = []
    for part in which.split(","):
        key, _, value = part.partition("=")
        values = [settings(record) for record in found]
        name = f"{key}.name" if any(f"{key}.name" in each for each in values) else key
        there = dict.fromkeys(_text(each[name]) for each in values if name in each)
        group = f"{key.partition('.')[0]}."
        if not there and not (value == "null" and any(other.startswith(group) for each in values for other in each)):
            raise ValueError(f"{text}: no record has the key {key}; expected one such as algo or network.bandwidth")
        kept = [r for r, each in zip(found, values, strict=True) if _has(each, name, value)]
        if not kept:
            raise ValueError(f"{text}: no record has {key}={value}; there are: {_short(', '.join(there))}")
        found = kept
        keys.append(key)
    return found, tuple(keys)


def settings(record: Record) -> dict[str, Any]:
    """Dotted keys and values of a record's configuration, without those that are not part of its identity."""
    return dict(frame.config_row(record["config"]))


def _has(own: dict[str, Any], key: str, value: str) -> bool:
    """`null` also stands for a key, or a group of keys, that is not there."""
    if value == "null":
        return own.get(key) is None and not any(other.startswith(f"{key}.") for other in own)
    return key in own and _is(own[key], value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is(value: Any, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return value == float(text)
        except ValueError:
            return False
    return _text(value) == text


def _short(text: str) -> str:
    return text if len(text) < 300 else f"{text[:300].rpartition(',')[0]}, ..."
