"""Runs a cell on an emulated network, which is measured before and after."""

from __future__ import annotations

from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import shape_of
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch, run_local
from bagua_bench.network import star, survey, traffic
from bagua_bench.network.commands import NetworkError
from bagua_bench.results.result import Result


def run_shaped(cell: Cell, watch: Watch, measured: dict[str, Any]) -> Result:
    """Run all ranks on emulated servers. Returns rank 0's result; `measured` receives the network's description.

    RunFailed if the network cannot be built or measured, or for the reasons of `run_local`; nothing is left behind.
    """
    try:
        with star.up(shape_of(cell)) as network:
            measured |= survey.describe(network)
            watch({"phase": "probing the network"})
            _survey(network, "before", measured)
            watch({"phase": "starting"})
            result = _train(cell, watch, network)
            measured["traffic"] = traffic.compare(result.ranks, cell.cluster.ranks_per_server)
            measured["flags"] += traffic.flags(measured["traffic"])
            watch({"phase": "probing the network"})
            _survey(network, "after", measured)
            return result
    except (NetworkError, OSError) as error:
        raise RunFailed(f"network: {error}") from error


def _train(cell: Cell, watch: Watch, network: star.Network) -> Result:
    try:
        return run_local(cell, watch, network.hosts)
    except RunFailed as failure:
        try:
            network.backend.drops()
        except NetworkError as error:  # the ranks lost each other because the network ended
            raise RunFailed(f"network: {error}", failure.log) from failure
        raise


def _survey(network: star.Network, when: str, measured: dict[str, Any]) -> None:
    before = network.backend.drops()
    measured[when] = survey.survey(network)
    measured["flags"] += survey.flags(network.shape, network.backend.frame, when, measured[when])
    if when == "after":
        measured["drops"] = before
        if before and not any(link.loss for link in network.shape.links):
            measured["flags"].append(f"{before} packets were dropped by a full queue")
