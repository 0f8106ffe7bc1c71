"""Selects the records that a fit can use: those that can be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.validate import validate
from bagua_bench.results.records import Record, cell_of


def simulable(found: Iterable[Record]) -> tuple[list[Record], str]:
    """The records that a simulation can be compared with, and a line on how many were left out and why (or nothing)."""
    kept, others = [], Counter[str]()
    for record in found:
        if reason := _obstacle(record):
            others[reason] += 1
        else:
            kept.append(record)
    reasons = ", ".join(f"{count} {reason}" for reason, count in others.items())
    return kept, f"left out {others.total()} of {others.total() + len(kept)} records: {reasons}" if others else ""


def simulated(cell: Cell) -> Cell:
    """The cell that simulates a cell that was run: computing takes the known time, whatever its precision was.

    Its cluster has no physical parameters: those of a record are what was thought of a cluster when it ran.
    """
    cluster, run = replace(cell.cluster, physics={}), replace(cell.run, precision="fp32", trace=None)
    return replace(cell, mode="simulate", cluster=cluster, run=run)


def condition(cell: Cell) -> str:
    """What is special about where a cell runs, the rarest first."""
    network, cluster, run = cell.network, cell.cluster, cell.run
    links = [{"loss": network.loss, "jitter": network.jitter}, *cluster.server.values()]
    found = {
        f"transport {cell.transport.name}": cell.transport.backend != "gloo",
        "several sites": network.sites > 1,
        "limits of single connections": bool(network.flow_rates),
        "loss": any(link.get("loss") for link in links),
        "jitter": any(link.get("jitter") for link in links),
        "unequal latencies": any(link.get("latency") for link in cluster.server.values()),
        "unequal links": bool(cluster.server),
        "a slow rank": bool(cluster.slow_ranks),
        "the engine's own buckets": run.bucket_size is None and not facts.algorithm(cell.algo).peer,
        "several channels": (run.channels or 1) > 1,
        "an odd number of servers": cluster.servers > 1 and cluster.servers % 2 == 1,
        "latency": bool(network.latency),
    }
    return next((name for name, holds in found.items() if holds), "bandwidth alone")


def _obstacle(record: Record) -> str:
    if record["status"] != "done" or record["source"] == "simulated":
        return str(record["source"] if record["status"] == "done" else record["status"])
    cell = cell_of(record)
    if cell.task.uneven:
        return "whose batches differ in work"
    try:
        validate(simulated(cell))
    except ValueError as error:
        return f"({str(error).partition(';')[0]})"
    return ""
