"""Runs one job and records how it ended; a campaign is many of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bagua_bench.campaign.stage import Stage
from bagua_bench.configuration.cell import Job
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch
from bagua_bench.results import records
from bagua_bench.results.records import Record


def run_job(job: Job, campaign: str, stage: Stage, watch: Watch) -> tuple[Record, Path]:
    """Run a job and append its record; returns the record and its file.

    A failed run is recorded and returned; an interrupted one is recorded and raises KeyboardInterrupt.
    """
    began = datetime.now(timezone.utc)
    path = records.file_of(job.cell.run.results, campaign)
    measured: dict[str, Any] = {}

    def keep(finish: Callable[[Record], Record]) -> tuple[Record, Path]:
        record = finish(records.make_record(job.cell, campaign, job.round, began))
        record["network"]["measured"] = measured or None
        records.append(path, record)
        return record, path

    try:
        result = stage.run(job.cell, watch, measured)
    except RunFailed as failure:
        reason, log = failure.reason, failure.log
        kept = keep(lambda record: records.fail(record, reason))
        _keep_log(path.parent, kept[0], log)
        return kept
    except KeyboardInterrupt:
        keep(lambda record: records.fail(record, "interrupted"))
        raise
    return keep(lambda record: records.complete(record, result))


def _keep_log(folder: Path, record: Record, log: str) -> None:
    """Keep what the processes of a failed run printed."""
    if log:
        path = folder / "logs" / f"{record['cell']}-{record['round']}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(log)
