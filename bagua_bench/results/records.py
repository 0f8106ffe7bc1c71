"""Records: one JSON line per run, schema in results/README.md. No torch import."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.identity import flatten
from bagua_bench.results import provenance
from bagua_bench.results.lines import Parser, Versions
from bagua_bench.results.result import Result
from bagua_bench.results.schema_history import SCHEMA
from bagua_bench.results.summary import summarise

SOURCES = {"measure": "measured", "emulate": "emulated", "simulate": "simulated"}

ADHOC = "runs"
"""Campaign name of runs that belong to none."""

Record = dict[str, Any]


def make_record(cell: Cell, campaign: str, round_: int, began: datetime) -> Record:
    """What is known about a run before it has a result; its status is `failed` until `complete` or `fail`."""
    config = cell.to_json()
    return {
        "schema": SCHEMA,
        "status": "failed",
        "reason": None,
        "source": SOURCES[cell.mode],
        "campaign": campaign,
        "round": round_,
        "cell": cell.id,
        "began": began.isoformat(timespec="seconds"),
        "seconds": (datetime.now(timezone.utc) - began).total_seconds(),
        "config": config,
        "ranks": cell.cluster.ranks,
        "code": provenance.code(cell),
        "machine": provenance.machine(),
        "environment": provenance.environment(),
        "network": {"asked": config["network"], "measured": None},
        "result": None,
    }


def complete(record: Record, result: Result, trace: str | None = None) -> Record:
    """Add rank 0's result: status `done`, or `wrong` if its checks did not pass. trace: the file of the run's trace."""
    checks = result.checks
    status = "done" if checks.passed else "wrong"
    found = summarise(result) | ({} if trace is None else {"trace": trace})
    return {**record, "status": status, "reason": checks.reason, "result": found}


def fail(record: Record, reason: str) -> Record:
    """Status `failed` with its reason."""
    return {**record, "status": "failed", "reason": reason}


def skip(record: Record, reason: str) -> Record:
    """Status `skipped`: what it takes to run it is not here."""
    return {**record, "status": "skipped", "reason": reason}


def disturbed(record: Record) -> list[str]:
    """What else kept the machine busy while it was timed, one line each; empty if nothing, or if it is not known."""
    found = record.get("disturbance")
    return list(found["flags"]) if found else []


def bytes_sent(record: Record) -> float:
    """Bytes that a rank sends in a step of a finished run, mean over the ranks; an entry may stand for several."""
    result = record["result"]
    sent = [sum(rank.values()) for rank in result["bytes_per_step"]]
    counts = result.get("rank_counts") or [1] * len(sent)
    return float(sum(each * count for each, count in zip(sent, counts, strict=True)) / sum(counts))


def cell_of(record: Record) -> Cell:
    """The cell that was run. ValueError, one line, for an invalid configuration."""
    return Cell.from_json(record["config"])


def file_of(results: str, campaign: str) -> Path:
    """The file with a campaign's records, in the folder `run.results`."""
    return Path(results).resolve() / campaign / "records.jsonl"


def append(path: Path, record: Record) -> None:
    """Add one line, whole or not at all, and have it on disk on return. OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(stream.fileno(), 1, size - 1) != b"\n"
        rest = b"\n" * torn + json.dumps(record).encode() + b"\n"
        try:
            while rest:
                rest = rest[stream.write(rest) :]
            os.fsync(stream.fileno())
        except OSError:
            with suppress(OSError):  # a device has no length
                os.ftruncate(stream.fileno(), size)
            raise


class NotKept(Exception):
    """A record is not where it belongs; the message says why, and where it is."""


def keep(path: Path, record: Record) -> NotKept | None:
    """Append a record; where that fails, write it to a file in the temporary folder, or else to stderr."""
    try:
        append(path, record)
    except OSError as error:
        why = f"{path}: the record cannot be written: {error.strerror or error}"
    else:
        return None
    with suppress(OSError):
        aside = Path(mkdtemp(prefix="bagua-bench-record-")) / path.name
        append(aside, record)
        return NotKept(f"{why}; it is in {aside}, to be appended to that file")
    print(json.dumps(record), file=sys.stderr)
    return NotKept(f"{why}; it is the line above, to be appended to that file")


def read(paths: Iterable[Path]) -> list[Record]:
    """All records of the files, in order and in the current schema. ValueError for an unknown schema.

    A line that a killed writer left unfinished is skipped. Parts that are the same in several records (configuration,
    code, machine) are one object: copy a record before changing it.
    """
    found, parser, versions = [], Parser(), Versions()
    for path in paths:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                record = parser.parse(line)
                if record is None:
                    continue
                try:
                    found.append(versions.migrate(record))
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
    return found


def cells_of(records: Iterable[Record]) -> list[Cell]:
    """The cell of each record; records that share their configuration share it. ValueError as of `cell_of`."""
    kept = list(records)  # alive, so that an id stands for one object
    cells: dict[int, Cell] = {}
    for record in kept:
        if id(record["config"]) not in cells:
            cells[id(record["config"])] = cell_of(record)
    return [cells[id(record["config"])] for record in kept]


def latest(found: Iterable[Record]) -> list[Record]:
    """The finished records of the newest code, one per cell and round; runs and simulations have codes of their own."""
    done = [record for record in found if record["status"] == "done"]
    newest = {r["source"]: r["code"]["sources"] for r in sorted(done, key=lambda record: str(record["began"]))}
    kept = {(r["cell"], r["round"]): r for r in done if r["code"]["sources"] == newest[r["source"]]}
    return list(kept.values())


def comparable(records: Iterable[Record], axes: Iterable[str]) -> None:
    """Raise ValueError if the records differ in anything but the axes (dotted keys of the configuration).

    Code, machine and source of the numbers must be the same as well.
    """
    seen: dict[str, str] | None = None
    code: dict[tuple[str, str], str] = {}
    kept = {(r["source"], *(id(r[part]) for part in ("config", "code", "machine"))): r for r in records}
    for record in kept.values():  # records that share these parts need one look
        facts = _facts(record, set(axes))
        for group in ("algo", "task"):
            target = record["config"][group]["_target_"]
            if code.setdefault((group, target), record["code"][group]) != record["code"][group]:
                raise ValueError(f"records differ in the code of {target}")
        if seen is not None and facts != seen:
            keys = sorted(key for key in {*facts, *seen} if facts.get(key) != seen.get(key))
            raise ValueError(f"records differ in {', '.join(keys)}, which this figure does not vary")
        seen = facts


def _facts(record: Record, axes: set[str]) -> dict[str, str]:
    facts = {
        "source": record["source"],
        "code": record["code"]["sources"],
        "machine": record["machine"]["fingerprint"],
        "packages": json.dumps(record["machine"]["packages"]),
        "mode": record["config"]["mode"],
    }
    config = {key: value for key, value in flatten(record["config"]).items() if key.partition(".")[0] not in axes}
    return facts | {key: json.dumps(value) for key, value in config.items() if key not in axes}
