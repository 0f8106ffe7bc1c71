"""What would change a step's time, and from which bandwidth on another algorithm is as good. No torch import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bagua_bench.advise.ranking import Setting
from bagua_bench.advise.reasons import without_latency
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.compute import Compute
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.run import step_seconds

AS_GOOD = 1.05
"""Times as fast as another that counts as no difference."""
_QUADRUPLINGS = 5
_HALVINGS = 5  # of what is left of a quadrupling, on a logarithmic scale: 4 %


def levers(cell: Cell) -> dict[str, float]:
    """How many times as fast a step is with one thing improved.

    bandwidth: twice that of the line, of the sites' lines where there are several, whatever software can move;
    software: twice what it moves between servers; latency: none; computing: in half the time.
    """
    setting = Setting(cell)
    now = _seconds(setting)
    return {
        "bandwidth": now / _seconds(setting, _wider(setting.cluster, 2)),
        "software": now / _seconds(setting, _quicker(setting.cluster, 2)),
        "latency": now / _seconds(setting, without_latency(setting.cluster)),
        "computing": now / _seconds(setting, compute=_twice(setting.compute)),
    }


@dataclass(frozen=True)
class Crossing:
    """The bandwidth, bits/s, at which one algorithm stops to be faster than others by `AS_GOOD`.

    upwards: whether it was looked for above the bandwidth at hand, where it is faster now, or below, where it is not.
    bandwidth None: not within a factor of 1024 of the line; then `both` is how many times as fast line and software
    have to be together. None as well: not within that factor either. `ratio` is how many times as fast it is where it
    was looked last.
    """

    upwards: bool
    bandwidth: float | None
    both: float | None
    ratio: float


def crossing(cells: Sequence[Cell], others: Sequence[Cell]) -> Crossing:
    """Where the best of some settings and the best of others are as fast; each keeps its buckets."""
    mine, theirs = ([Setting(cell) for cell in group] for group in (cells, others))

    def ratio(change: Callable[[Cluster, float], Cluster], factor: float) -> float:
        fastest = [min(_seconds(each, change(each.cluster, factor)) for each in group) for group in (mine, theirs)]
        return fastest[1] / fastest[0]

    upwards, both = ratio(_wider, 1.0) > AS_GOOD, None
    step = 4.0 if upwards else 0.25
    factor, reached = _search(lambda factor: (ratio(_wider, factor) > AS_GOOD) == upwards, step)
    last = ratio(_wider, reached)
    if upwards and factor is None:
        both, reached = _search(lambda factor: ratio(_both, factor) > AS_GOOD, step)
        last = ratio(_both, reached)
    return Crossing(upwards, None if factor is None else factor * 8 * _line(cluster_of(cells[0])), both, last)


def _search(holds: Callable[[float], bool], step: float) -> tuple[float | None, float]:
    """The factor up to which something holds that holds at 1, in powers of `step`; None, and the last one, if it does.

    Also the factor at which to look what is there.
    """
    inside = 1.0
    for _ in range(_QUADRUPLINGS):
        outside = inside * step
        if not holds(outside):
            for _ in range(_HALVINGS):
                middle = (inside * outside) ** 0.5
                inside, outside = (middle, outside) if holds(middle) else (inside, middle)
            return (inside * outside) ** 0.5, outside
        inside = outside
    return None, inside


def _seconds(setting: Setting, cluster: Cluster | None = None, compute: Compute | None = None) -> float:
    return step_seconds(setting.program, cluster or setting.cluster, compute or setting.compute, setting.factors)


def _line(cluster: Cluster) -> float:
    """Bytes/s of the line that is in question: between sites where there are several, else of a server."""
    links = cluster.network.far or cluster.network
    return links.line or cluster.physics.line


def _wider(cluster: Cluster, factor: float) -> Cluster:
    """With `_line` so many times as fast; where that is the line between sites, servers' own links stay as they are."""
    network, line = cluster.network, factor * _line(cluster)
    if network.far is not None:
        return replace(cluster, network=replace(network, far=replace(network.far, line=line)))
    return replace(cluster, network=replace(network, line=line))


def _quicker(cluster: Cluster, factor: float) -> Cluster:
    rates = {key: factor * getattr(cluster.physics, key) for key in ("ring", "process", "servers")}
    return replace(cluster, physics=replace(cluster.physics, **rates))


def _both(cluster: Cluster, factor: float) -> Cluster:
    return _quicker(_wider(cluster, factor), factor)


def _twice(compute: Compute) -> Compute:
    return replace(
        compute,
        forward=compute.forward / 2,
        backward=compute.backward / 2,
        optimizer=compute.optimizer / 2,
        memory_bandwidth=compute.memory_bandwidth * 2,
    )
