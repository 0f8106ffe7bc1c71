"""`bagua_bench.load`: records as a data frame. No torch import."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bagua_bench.analysis import files
from bagua_bench.configuration.identity import flatten
from bagua_bench.results.records import Record

if TYPE_CHECKING:
    import pandas as pd

_OWN = ("schema", "status", "reason", "source", "campaign", "round", "cell", "began", "seconds", "ranks")
_TEXTS = ("reason", "checks.reason")
_GROUPS = ("checks", "averaging", "sending", "metrics", "phase_seconds")
"""Parts of a result whose plain values are columns."""

Row = Mapping[str, Any]


def load(results: str | Path) -> pd.DataFrame:
    """One row a run, in the order of the files; docs/results.md has the columns.

    results: a file of records, a campaign's folder, or a folder with several campaigns. Records of every version are
    read as the present one. ValueError, one line, if there are none.
    """
    return frame(files.read(results))


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """The same of records that are there already."""
    import pandas as pd

    parts = [
        _table([_own(record) for record in records], dict),
        _table([record.get("result") or _NOTHING for record in records], _result),
        _table([record.get("network") or _NOTHING for record in records], _network),
        _table([record.get("disturbance") or _NOTHING for record in records], _disturbance),
        _table([record.get("config") or _NOTHING for record in records], config_row),
        _table([record.get("code") or _NOTHING for record in records], _code),
        _table([record.get("machine") or _NOTHING for record in records], lambda part: _flat("machine", part)),
        _table([record.get("environment") or _NOTHING for record in records], lambda part: _flat("environment", part)),
    ]
    found = pd.concat(parts, axis=1)
    if "began" in found:
        found["began"] = pd.to_datetime(found["began"], utc=True, format="ISO8601")
    return found


_NOTHING: Row = {}


def _table(parts: Sequence[Row], flatten: Callable[[Row], Row]) -> pd.DataFrame:
    """Columns of one part of every record. A part that records share is flattened and typed once."""
    import pandas as pd

    places = {id(part): number for number, part in reversed(list(enumerate(parts)))}
    numbers = {place: number for number, place in enumerate(sorted(places.values()))}
    rows = [flatten(parts[place]) for place in numbers]
    names = dict.fromkeys(name for row in rows for name in row)
    data = pd.DataFrame({name: _typed(name, [row.get(name) for row in rows]) for name in names}, range(len(rows)))
    return data.take([numbers[places[id(part)]] for part in parts]).reset_index(drop=True)


def _typed(name: str, values: Sequence[Any]) -> Any:
    """A column: booleans, integers, numbers, or names (categories) and texts; what is not known is missing."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    whole = all(value is not None for value in values)
    if kinds == {bool}:
        return pd.array(values, dtype="bool" if whole else "boolean")
    if kinds == {int}:
        return pd.array(values, dtype="int64" if whole else "Int64")
    if name in _TEXTS or name == "began":
        return pd.array(values, dtype="str")
    if kinds <= {int, float}:
        return pd.array([float("nan") if value is None else float(value) for value in values], dtype="float64")
    return pd.Categorical([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    """Dotted names and values of a mapping; a list is one value."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {name: item for key, part in value.items() for name, item in _flat(f"{prefix}.{key}", part).items()}


def _own(record: Record) -> Row:
    return {key: record.get(key) for key in _OWN}


def config_row(config: Row) -> Row:
    """Dotted keys and plain values of a configuration, without those that are not part of its identity."""
    return {name: item for key, value in flatten(config).items() for name, item in _flat(key, value).items()}


def _code(code: Row) -> Row:
    git = code.get("git") or {}
    plain = {f"code.{key}": value for key, value in code.items() if key != "git"}
    return {**plain, "code.commit": git.get("commit"), "code.diff": git.get("diff")}


def _network(network: Row) -> Row:
    measured = network.get("measured")
    if measured is None:
        return {}
    return {"network_flags": len(measured.get("flags", ())), "network_busy": measured.get("busy")}


def _disturbance(found: Row) -> Row:
    values = {f"disturbance.{key}": found[key] for key in ("others", "stolen") if found}
    return {**values, "disturbance_flags": len(found["flags"])} if found else {}


def _result(result: Row) -> Row:
    return dict(_result_values(result)) if result else {}


def _result_values(result: Row) -> Iterator[tuple[str, Any]]:
    """Lists become what is said of them: medians over steps, means or the largest over ranks, numbers of entries."""
    weights = result.get("rank_counts")
    steps = result.get("step_seconds") or []
    yield "throughput", result.get("throughput")
    yield from zip(("throughput_low", "throughput_high"), result.get("throughput_interval") or (), strict=False)
    yield "step_seconds_median", median(steps) if steps else None
    yield "step_seconds_mean", sum(steps) / len(steps) if steps else None
    yield "steps", len(steps)
    yield "epoch_seconds", result.get("epoch_seconds")
    sent = result.get("bytes_per_step") or []
    yield "bytes_per_step", _mean([sum(rank.values()) for rank in sent], weights)
    for level in sent[0] if sent else ():
        yield f"bytes_per_step.{level}", _mean([rank[level] for rank in sent], weights)
    yield "peak_memory", _largest(result.get("peak_memory") or ())
    yield "skipped_steps", _largest(result.get("skipped_steps") or ())
    losses = result.get("losses") or [None]
    yield from (("loss_first", losses[0]), ("loss_last", losses[-1]))
    for key in ("samples_per_step", "samples_per_epoch", "parameters", "warmup_steps", "synthetic", "imbalance"):
        yield key, result.get(key)
    for group in _GROUPS:
        yield from _flat(group, result.get(group) or {}).items()
    yield "trials", len(result["study"]["trials"]) if result.get("study") else None
    yield "interruptions", len(result["elastic"]["interruptions"]) if result.get("elastic") else None


def _mean(values: Sequence[float], weights: Sequence[float] | None) -> float | None:
    """Over ranks; in a simulation an entry stands for several of them."""
    each = weights or [1] * len(values)
    return sum(v * w for v, w in zip(values, each, strict=True)) / sum(each) if values else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
