"""Which runs a campaign consists of, and in what order. No torch import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from bagua_bench.configuration.cell import Cell, Job
from bagua_bench.results.records import Record


def interleave(cells: Sequence[Cell], rounds: int) -> list[Job]:
    """All cells, round by round, in reverse order every other round: the machine's drift affects all cells alike."""
    jobs = []
    for round_ in range(rounds):
        ordered = cells if round_ % 2 == 0 else list(reversed(cells))
        jobs += [Job(cell, round_) for cell in ordered]
    return jobs


def remaining(jobs: Iterable[Job], records: Iterable[Record], code: Callable[[Cell], Mapping[str, str]]) -> list[Job]:
    """The jobs that no record shows as done with the same code; `code` gives the hashes of a cell's code."""
    done: dict[tuple[str, int], list[Mapping[str, object]]] = {}
    for record in records:
        if record["status"] == "done":
            done.setdefault((record["cell"], record["round"]), []).append(record["code"])

    def is_done(job: Job) -> bool:
        return any(code(job.cell).items() <= past.items() for past in done.get((job.cell.id, job.round), ()))

    return [job for job in jobs if not is_done(job)]


def estimate(jobs: Iterable[Job], records: Iterable[Record]) -> float | None:
    """Seconds that the jobs will take, by earlier runs of the same cell or else of all cells; None without any."""
    taken: dict[str, list[float]] = {}
    for record in records:
        taken.setdefault(record["cell"], []).append(record["seconds"])
    if not taken:
        return None
    usual = fmean(fmean(seconds) for seconds in taken.values())
    return sum(fmean(taken.get(job.cell.id, [usual])) for job in jobs)
