"""Says what is wrong with the settings of a run that survives the loss of servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import Cell, ElasticPart, Outage


def problems(cell: Cell) -> Iterator[str]:
    """One line for each problem, which names key, value and what is allowed."""
    asked = cell.run.elastic
    if asked is None:
        return
    yield from _parts(cell)
    for key, value in (("every", asked.every), ("keep", asked.keep), ("servers", asked.servers)):
        if value < 1:
            yield f"elastic.{key}={value}: must be at least 1"
    if asked.restarts < 0:
        yield f"elastic.restarts={asked.restarts}: must be at least 0"
    if asked.servers > cell.cluster.servers:
        yield f"elastic.servers={asked.servers}: allowed: at most cluster.servers={cell.cluster.servers}"
    if asked.regroup:
        yield from _regroup(cell)
    yield from _outages(cell, asked)


def _parts(cell: Cell) -> Iterator[str]:
    """What goes with it, and what does not."""
    declared = facts.algorithm(cell.algo)
    if cell.mode != "measure":
        yield f"run.elastic=true: mode={cell.mode} learns nothing that could be kept; allowed: mode=measure"
    if declared.peer:
        yield (
            f"run.elastic=true: algo={cell.algo.name} is a system of its own, and checkpoints are those of the "
            "suite's engine; allowed: the algorithms of the suite"
        )
    if not facts.task(cell.task).elastic:
        yield f"run.elastic=true: task={cell.task.name} cannot begin in mid-epoch"
    if cell.task.uneven:
        yield (
            f"run.elastic=true: task.sampler={cell.task.options['sampler']} cannot begin in mid-epoch; allowed: "
            "task.sampler=null"
        )
    if cell.run.autotune is not None:
        yield "run.elastic=true: the steps of run.autotune are undone, those of an elastic run are kept; use one"
    if cell.run.device == "cuda":
        yield "run.elastic=true: the ranks of all servers would share one machine's GPUs; allowed: run.device=cpu"


def _regroup(cell: Cell) -> Iterator[str]:
    """What ranks that are left can go on with."""
    if not facts.algorithm(cell.algo).regroups:
        names = conf_folder.names("algo")
        able = ", ".join(name for name in names if facts.option(name).regroups)
        yield f"elastic.regroup=true: algo={cell.algo.name} cannot go on without a restart; allowed: {able}"
    if cell.cluster.ranks_per_server != 1:
        yield f"elastic.regroup=true: cluster.ranks_per_server={cell.cluster.ranks_per_server}: allowed: 1"
    if cell.task.options.get("sync_bn"):
        yield "elastic.regroup=true: task.sync_bn=true: its layers talk to ranks that may be gone; allowed: false"


def _outages(cell: Cell, asked: ElasticPart) -> Iterator[str]:
    last, servers = cell.run.untimed + cell.run.steps, cell.cluster.servers
    for outage in asked.outages:
        text = f"elastic.outages={text_of(outage)}"
        if outage.server >= servers:
            yield f"{text}: allowed: servers 0 to {servers - 1}"
        if not 1 <= outage.step < last or (outage.back is not None and not outage.step < outage.back < last):
            yield f"{text}: allowed: steps 1 to {last - 1}, the second one later than the first"
    for server in range(servers):
        of_one = sorted((one for one in asked.outages if one.server == server), key=lambda one: one.step)
        for one, other in pairwise(of_one):
            if one.back is None or other.step <= one.back:
                yield f"elastic.outages={text_of(other)}: server {server} is still away since step {one.step}"
    fewest = min((servers - _away(asked.outages, one.step) for one in asked.outages), default=servers)
    if fewest < asked.servers:
        yield f"elastic.outages: leaves {fewest} servers, and elastic.servers={asked.servers} are needed to go on"


def _away(outages: Sequence[Outage], step: int) -> int:
    """How many servers are away right after a step."""
    return sum(one.step <= step and (one.back is None or one.back > step) for one in outages)


def text_of(outage: Outage) -> str:
    """An outage as a user writes it."""
    return f"{outage.server}@{outage.step}" + ("" if outage.back is None else f"-{outage.back}")
