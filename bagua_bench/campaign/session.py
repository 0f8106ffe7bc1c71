"""Runs a list of jobs, shows and records each, and continues after a failure."""

from __future__ import annotations

from collections.abc import Sequence

from bagua_bench.campaign.job import run_job
from bagua_bench.campaign.plan import estimate, remaining
from bagua_bench.campaign.stage import Stage
from bagua_bench.configuration.cell import Job
from bagua_bench.console import display, outcome
from bagua_bench.results import records
from bagua_bench.results.provenance import hashes
from bagua_bench.results.records import Record


def run_jobs(jobs: Sequence[Job], campaign: str, resume: bool) -> list[str]:
    """Run the jobs; with `resume`, only those that the campaign's records do not have yet. Returns the failures.

    NotKept after a run whose record cannot be written: those of the runs behind it would be lost, too.
    """
    known, todo = _open(jobs, campaign, resume)
    names = display.names([job.cell for job in jobs])
    failures = []
    with Stage() as stage:
        for number, job in enumerate(todo, len(jobs) - len(todo) + 1):
            place = f"[{number}/{len(jobs)}] " if len(jobs) > 1 else ""
            left = display.left(estimate(todo[number - 1 - len(jobs) :], known)) if len(jobs) > 1 else ""
            with display.watching(place + left + job.cell.label) as watch:
                record, where, lost = run_job(job, campaign, stage, watch)
            known.append(record)
            if len(jobs) > 1:
                outcome.show_line(place + names[record["cell"]], record)
            else:
                outcome.show(record, None if lost else where)
            if lost:
                raise lost
            if record["status"] not in ("done", "skipped"):
                failures.append(f"{job.cell.label}: {record['reason']}")
    if len(jobs) > 1:
        outcome.show_end(len(jobs) - len(todo), records.file_of(jobs[0].cell.run.results, campaign))
    return failures


def preview(jobs: Sequence[Job], campaign: str) -> None:
    """Print a campaign's cells, how many of their rounds are done, and how long the rest will take."""
    known, todo = _open(jobs, campaign, resume=True)
    display.show_plan(jobs, todo, estimate(todo, known))


def _open(jobs: Sequence[Job], campaign: str, resume: bool) -> tuple[list[Record], list[Job]]:
    """The campaign's records so far, and the jobs still to be done."""
    path = records.file_of(jobs[0].cell.run.results, campaign)
    known = records.read([path]) if resume and path.exists() else []
    return known, remaining(jobs, known, hashes)
