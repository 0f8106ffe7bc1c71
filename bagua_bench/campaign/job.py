"""Runs one job and records how it ended; a campaign is many of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bagua_bench.campaign.stage import Stage
from bagua_bench.configuration.cell import Job
from bagua_bench.configuration.validate import absent
from bagua_bench.launch import joined
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch
from bagua_bench.processes.alone import alone
from bagua_bench.processes.disturbance import Disturbance
from bagua_bench.results import records, trace
from bagua_bench.results.records import NotKept, Record


class Ended(NamedTuple):
    """How a job ended: its record, the file that this belongs to, and why it is not there if it is not."""

    record: Record
    path: Path
    lost: NotKept | None


def run_job(job: Job, campaign: str, stage: Stage, watch: Watch) -> Ended:
    """Run a job and append its record. Where it is timed on this machine, wait for other timed runs of this user.

    A job whose algorithm is not installed is skipped. A failed run is recorded and returned; an interrupted one is
    recorded and raises KeyboardInterrupt.
    """
    if job.cell.mode == "simulate" or joined.is_joined() or absent(job.cell):
        return _run_job(job, campaign, stage, watch, None)
    with alone(lambda text: watch({"phase": text})):
        return _run_job(job, campaign, stage, watch, Disturbance())


def _run_job(job: Job, campaign: str, stage: Stage, watch: Watch, disturbance: Disturbance | None) -> Ended:
    began = datetime.now(timezone.utc)
    path = records.file_of(job.cell.run.results, campaign)
    measured: dict[str, Any] = {}

    def keep(finish: Callable[[Record], Record]) -> Ended:
        record = finish(records.make_record(job.cell, campaign, job.round, began))
        record["network"]["measured"] = measured or None
        record["disturbance"] = disturbance.found() if disturbance else None
        return Ended(record, path, records.keep(path, record))

    if missing := absent(job.cell):
        return keep(partial(records.skip, reason=missing))
    try:
        result = stage.run(job.cell, watch, measured)
    except RunFailed as failure:
        reason, log = failure.reason, failure.log
        kept = keep(lambda record: records.fail(record, reason))
        _keep_log(path.parent, kept.record, log)
        return kept
    except KeyboardInterrupt:
        if lost := keep(lambda record: records.fail(record, "interrupted")).lost:
            print(lost, file=sys.stderr)
        raise
    name = f"traces/{job.cell.id}-{began:%Y%m%dT%H%M%S}.json" if any(rank.spans for rank in result.ranks) else None
    kept = keep(lambda record: records.complete(record, result, name))
    if name is not None:
        try:
            trace.write(path.parent / name, result, job.cell.label)
        except OSError as error:
            print(f"{path.parent / name}: the trace cannot be written: {error.strerror or error}", file=sys.stderr)
    return kept


def _keep_log(folder: Path, record: Record, log: str) -> None:
    """Keep what the processes of a failed run printed; on stderr where no file can be written."""
    if log:
        path = folder / "logs" / f"{record['cell']}-{record['round']}.log"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(log)
        except OSError as error:
            print(f"{log}\n{path}: the log above cannot be written: {error.strerror}", file=sys.stderr)
