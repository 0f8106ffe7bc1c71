"""Order and resumption of campaigns."""

from __future__ import annotations

from dataclasses import replace

from bagua_bench.campaign.plan import estimate, interleave, remaining
from bagua_bench.configuration.cell import Job
from tests.catalogue import resolved
from tests.unit.test_records import CELL

CELLS = [replace(CELL, run=replace(CELL.run, steps=k)) for k in (1, 2, 3)]


def test_rounds_are_outermost_and_alternate() -> None:
    order = [(job.round, job.cell.run.steps) for job in interleave(CELLS, 3)]
    assert order == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1), (2, 1), (2, 2), (2, 3)]


def test_all_rounds_of_one_network_come_before_the_next() -> None:
    emulated = resolved("mode=emulate", "cluster.servers=2", "network.bandwidth=1gbit", "network.latency=1ms")
    here = [replace(emulated, run=replace(emulated.run, steps=steps)) for steps in (1, 2)]
    there = [replace(cell, network=replace(cell.network, latency=2e-3)) for cell in here]
    slower = resolved(
        *("mode=emulate", "cluster.servers=2", "network.bandwidth=1gbit", "network.latency=1ms", "run.steps=1"),
        *("compute=v100", "compute.haste=0.5"),  # a scale model has a network of its own
    )
    jobs = interleave([here[0], there[0], slower, here[1], there[1]], 2)
    order = [(job.round, job.cell.network.latency, job.cell.haste, job.cell.run.steps) for job in jobs]
    assert order == [
        *((0, 1e-3, 1, 1), (0, 1e-3, 1, 2), (1, 1e-3, 1, 2), (1, 1e-3, 1, 1)),
        *((0, 2e-3, 1, 1), (0, 2e-3, 1, 2), (1, 2e-3, 1, 2), (1, 2e-3, 1, 1)),
        *((0, 1e-3, 0.5, 1), (1, 1e-3, 0.5, 1)),
    ]


def test_only_good_records_of_the_same_code_count_as_done() -> None:
    code = {"sources": "x", "algo": "a", "task": "t"}

    def record(cell: int, round_: int, status: str = "done", **other: str) -> dict[str, object]:
        return {"cell": CELLS[cell].id, "round": round_, "status": status, "code": {"git": None, **code, **other}}

    found = [record(0, 0), record(1, 0, "failed"), record(2, 0, sources="y"), record(2, 1), record(1, 1, algo="b")]
    left = remaining(interleave(CELLS, 2), found, lambda cell: code)
    assert [(job.round, job.cell.run.steps) for job in left] == [(0, 2), (0, 3), (1, 2), (1, 1)]


def test_what_was_disturbed_is_run_again_where_that_is_asked_for() -> None:
    code, flags = {"sources": "x"}, [None, {"flags": []}, {"flags": ["other processes kept 1 of 2 cores busy"]}]
    found = [
        {"cell": cell.id, "round": 0, "status": "done", "code": code, "disturbance": disturbance}
        for cell, disturbance in zip(CELLS, flags, strict=True)
    ]
    assert remaining(interleave(CELLS, 1), found, lambda cell: code) == []
    [left] = remaining(interleave(CELLS, 1, undisturbed=True), found, lambda cell: code)
    assert left.cell == CELLS[2]
    again = {**found[2], "disturbance": {"flags": []}}
    assert remaining(interleave(CELLS, 1, undisturbed=True), [*found, again], lambda cell: code) == []


def test_a_cell_is_its_configuration_without_where_results_go() -> None:
    moved = replace(CELL, run=replace(CELL.run, results="/elsewhere"))
    assert moved.id == CELL.id
    assert len({cell.id for cell in CELLS}) == 3


def test_the_time_left_is_that_of_earlier_runs() -> None:
    def took(cell: int, seconds: float) -> dict[str, object]:
        return {"cell": CELLS[cell].id, "seconds": seconds}

    jobs = [Job(cell, 0) for cell in CELLS]
    assert estimate(jobs, []) is None
    assert estimate(jobs, [took(0, 10), took(0, 20), took(1, 5)]) == 15 + 5 + 10, "an unknown cell is as the others"
    assert estimate(jobs[:1], [took(1, 5)]) == 5
