"""Runs a list of jobs, shows and records each, goes on after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bagua_bench import display, records
from bagua_bench.cell import label
from bagua_bench.launch import joined
from bagua_bench.plan import Job, remaining
from bagua_bench.provenance import code_hash
from bagua_bench.runner import run_job


def run_jobs(jobs: Sequence[Job], campaign: str, resume: bool) -> list[str]:
    """Run the jobs; with `resume`, only those that the campaign's records do not have yet. Returns the failures."""
    path = Path(jobs[0].cell["run"]["results"]) / campaign / "records.jsonl"
    todo = remaining(jobs, records.read([path]), code_hash()) if resume and path.exists() else list(jobs)
    failures = []
    for number, job in enumerate(todo, len(jobs) - len(todo) + 1):
        place = f"[{number}/{len(jobs)}] " if len(jobs) > 1 else ""
        with display.watching(place + label(job.cell)) as watch:
            kept = run_job(job, campaign, watch)
        if kept is not None and joined.is_recorder():
            record, where = kept
            display.show(record, where)
            if record["status"] != "done":
                failures.append(f"{label(job.cell)}: {record['reason']}")
    return failures
