"""Which runs a campaign consists of, and in what order. No torch import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from bagua_bench.configuration.cell import Cell, Job
from bagua_bench.configuration.network_shape import is_shaped, shape_of
from bagua_bench.machine.scale import scale_model
from bagua_bench.results.records import Record, disturbed

Place = tuple[object, ...] | None


def interleave(cells: Sequence[Cell], rounds: int, undisturbed: bool = False) -> list[Job]:
    """All rounds of the cells in one place, then those in the next.

    Rounds have the reverse order every other time, so that the machine's drift affects all cells of a place alike. The
    networks are built once.
    """
    places: dict[Place, list[Cell]] = {}
    for cell in cells:
        places.setdefault(place(cell), []).append(cell)
    return [
        Job(cell, round_, undisturbed)
        for there in places.values()
        for round_ in range(rounds)
        for cell in (there if round_ % 2 == 0 else reversed(there))
    ]


def place(cell: Cell) -> Place:
    """The processes and the emulated network that a run needs; all runs without such a network have one place."""
    if cell.mode == "simulate" or not is_shaped(cell):
        return None
    scaled = scale_model(cell)
    return (cell.mode, shape_of(scaled), cell.cluster.ranks, cell.transport)


def remaining(jobs: Iterable[Job], records: Iterable[Record], code: Callable[[Cell], Mapping[str, str]]) -> list[Job]:
    """The jobs that no record shows as done with the same code; `code` gives the hashes of a cell's code.

    A record of a disturbed run is none for a job that has to be undisturbed.
    """
    done: dict[tuple[str, int, bool], list[Mapping[str, object]]] = {}
    for record in records:
        if record["status"] == "done":
            for undisturbed in (False,) if disturbed(record) else (False, True):
                done.setdefault((record["cell"], record["round"], undisturbed), []).append(record["code"])

    def is_done(job: Job) -> bool:
        past = done.get((job.cell.id, job.round, job.undisturbed), ())
        return any(code(job.cell).items() <= one.items() for one in past)

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
