"""Why a step takes as long as it does: what waiting is for, and what would shorten it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bagua_bench.advise.ranking import Setting
from bagua_bench.configuration.cell import Cell
from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.run import step_seconds

_NEGLIGIBLE = 0.1
_NO_TIME = 1e-12  # seconds; not zero, as TCP's rate under loss is divided by it
_NO_LIMIT = 1e15


def why(cell: Cell) -> str:
    """Whichever of latency, bandwidth and TCP windows causes most waiting: the share of a step that it costs.

    Without latency nothing waits for a window either; windows are the cause if they cost most of what latency costs.
    Waiting for a straggler's computing is not counted.
    """
    setting = Setting(cell)
    step = _seconds(setting, setting.cluster)
    waiting = 1 - setting.compute.step * max(setting.factors) / step
    if waiting < _NEGLIGIBLE:
        return f"compute-bound: {max(0.0, waiting):.0%} waiting"
    saved = {kind: step - _seconds(setting, without(setting.cluster)) for kind, without in _CAUSES.items()}
    kind = max(("latency", "bandwidth"), key=saved.__getitem__)
    if kind == "latency" and saved["window"] > saved["latency"] / 2:
        kind = "window"
    return f"{kind}-bound: {max(saved[kind], 0) / step:.0%} of {waiting:.0%} waiting"


def with_windows(cell: Cell, factor: float) -> float:
    """Seconds of a step with TCP windows so many times as large."""
    network = cell.network
    larger = replace(cell, network=replace(network, tcp_window=int(network.tcp_window * factor)))
    setting = Setting(larger)
    return _seconds(setting, setting.cluster) * cell.haste


def _seconds(setting: Setting, cluster: Cluster) -> float:
    return step_seconds(setting.program, cluster, setting.compute, setting.factors)


def without_latency(cluster: Cluster) -> Cluster:
    """A cluster where no message takes time but for its bytes."""
    soon = replace(cluster.physics, latency=_NO_TIME, call=0.0, inside_hop=0.0)
    return replace(cluster, network=cluster.network.at_once(), physics=soon)


def _without_limits(cluster: Cluster) -> Cluster:
    wide = dict.fromkeys(("line", "ring", "process", "servers", "shaped"), _NO_LIMIT)
    physics = replace(cluster.physics, **wide)
    return replace(cluster, network=cluster.network.but(line=_NO_LIMIT), physics=physics)


def _without_windows(cluster: Cluster) -> Cluster:
    wide = dict.fromkeys(("window", "servers_window"), _NO_LIMIT)
    return replace(cluster, physics=replace(cluster.physics, **wide))


_CAUSES: dict[str, Callable[[Cluster], Cluster]] = {
    "latency": without_latency,
    "bandwidth": _without_limits,
    "window": _without_windows,
}
