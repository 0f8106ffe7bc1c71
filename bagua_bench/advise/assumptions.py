"""What an advice rests on, in words: task, cluster, network, computing, calibration, transports. No torch import."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bagua_bench.advise.ranking import Row
from bagua_bench.configuration import conf_folder, facts, network_settings
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.units import BYTES, RATES, amount, duration, text
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.cluster import cluster_of
from bagua_bench.simulate.posterior import posterior_of

_ALIKE = 1e-5  # of a step's time


def assumptions(cell: Cell) -> str:
    """One line: task, cluster, computing, network, and how the model of the cluster was calibrated."""
    cluster, compute = cluster_of(cell), compute_of(cell, layers_of(cell.task, cell.shrink))
    network, physics, layout = cluster.network, cluster.physics, cluster.layout
    rate = amount(8 * (network.line or physics.line), RATES)
    late = f"latency {duration(network.latency)} + {duration(physics.latency)} of the cluster"
    also = [
        f"{key} {network_settings.text(key, getattr(network, key))}"
        for key in ("jitter", "loss")
        if getattr(network, key)
    ]
    where = f"{layout.servers} servers x {layout.per_server} rank{'s' * (layout.per_server > 1)}"
    return "; ".join(
        [
            f"{_model(cell)}, batch {cell.task.batch}, {where}",
            f"{duration(compute.step * cell.haste)} of computing ({compute.origin}){_stragglers(cell)}",
            ", ".join([rate, late, *also, *_sites(cell), f"TCP windows of {text(cell.network.tcp_window, BYTES)}"]),
            f"cluster={cell.cluster.name}, {_calibration(cell)}",
        ]
    )


def _sites(cell: Cell) -> list[str]:
    """What is between sites: '2 sites, between them 1 Gbit/s and 15 ms'."""
    sites, wan = cell.network.sites, cell.network.wan
    if sites == 1:
        return []
    also = "".join(
        f", {key} {network_settings.text(key, getattr(wan, key))}" for key in ("jitter", "loss") if getattr(wan, key)
    )
    rate = "no limit" if wan.bandwidth is None else amount(wan.bandwidth, RATES)
    return [f"{sites} sites, between them {rate} and {duration(wan.latency)}{also}"]


def _model(cell: Cell) -> str:
    """The task's name; of one that is described, which it is, how large, and what is assumed of its layers."""
    if not facts.task(cell.task).described:
        return cell.task.name
    layers, name = layers_of(cell.task), cell.task.options["model"] or "a model"
    return f"{name} of {layers.elements:,} parameters (assumed: {layers.assumed})"


def _stragglers(cell: Cell) -> str:
    return "".join(f", {factor:g} times as long on rank {rank}" for rank, factor in cell.cluster.slow_ranks.items())


def _calibration(cell: Cell) -> str:
    share = cluster_of(cell).physics.uncertainty
    if "uncertainty" not in cell.cluster.physics:
        return f"not calibrated: ±{share:.0%} assumed"
    posterior = posterior_of(cell.cluster.name)
    beyond = [] if posterior is None else posterior.beyond(cell)
    far = f"; extrapolated: {', '.join(beyond)}" if beyond else ""
    if posterior is not None and posterior.error_of is not None:
        other = f"what 9 of 10 points of {posterior.error_of} are within" if posterior.error_of else "assumed"
        return f"calibrated on few points; ±{share:.0%} is {other}{far}"
    return f"calibrated: 9 of 10 of its points within ±{share:.0%}{far}"


def transports(best: Sequence[Row], cell: Cell) -> tuple[bool, str]:
    """Whether the transports differ, for any algorithm, and one line on them.

    best: a row for each algorithm and transport.
    """
    names, rest = list(dict.fromkeys(row.transport for row in best)), _not_modelled(cell)
    seconds: dict[str, list[float]] = {}
    for row in best:
        seconds.setdefault(row.algorithm, []).append(row.step_seconds)
    if not all(math.isclose(min(each), max(each), rel_tol=_ALIKE) for each in seconds.values()):
        return True, f"transports compared: {', '.join(names)}{rest}"
    if len(names) > 1:
        return False, f"transport: no difference between {' and '.join(names)} here, by this model{rest}"
    return False, f"transport: {names[0]}{rest}"


def _not_modelled(cell: Cell) -> str:
    """Why there are no rows for the other transports; empty if there are rows for all."""
    asked, own = cell.transport.name, cell.cluster.transports
    others = ", ".join(name for name in conf_folder.names("transport") if name not in (asked, *own))
    if not others:
        return ""
    known = f"transport parameters for {', '.join(own)} only" if own else "no transport parameters"
    return f"; not modelled: {others}; cluster={cell.cluster.name} has {known}"
