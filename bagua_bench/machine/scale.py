"""Scale models: emulated or simulated runs that send a fraction of the bytes, or take a fraction of the time.

No torch import.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell, LinkPart, NetworkPart
from bagua_bench.configuration.network_shape import AUTO, longest_trip, streams

_TIMES = ("latency", "jitter")  # of a link


def scale_model(cell: Cell) -> Cell:
    """The cell to run instead of a cell.

    compute.shrink: rates, TCP windows and buckets shrink like the tensors, and times stay the same. A transfer then
    takes as long, relative to computing and to the latency, as in the original, with a fraction of the bytes: 100
    Gbit/s networks fit on a small machine. compute.haste: computing, latencies and transfers are quicker, windows and
    buckets stay the same. A step over a slow network then takes a fraction of its time. Software that is as fast as
    ever counts for so many times as much, which is little where the network is slow. Below 1 all is slower, and the
    software of a small machine counts for less: for networks that are fast.
    """
    if cell.shrink == cell.haste == 1:
        return cell
    network, algo, declared = cell.network, cell.algo, facts.algorithm(cell.algo)
    smaller = {key: _smaller(f"algo.{key}", algo.options[key], cell.shrink) for key in declared.in_bytes}
    shorter = {key: _shorter(f"algo.{key}", algo.options[key], cell.haste) for key in declared.in_time}
    links = cell.cluster.server.items()
    servers = {number: {key: _scaled(key, link[key], cell) for key in link} for number, link in links}
    size, transport = cell.run.bucket_size, cell.transport
    if transport.streams == AUTO and cell.haste != 1:  # it would choose by a round trip that is no longer as long
        transport = replace(transport, streams=streams(transport, longest_trip(cell)))
    return replace(
        cell,
        transport=transport,
        network=replace(
            network,
            **_link(network, cell),
            flow_rates=tuple(rate * cell.haste / cell.shrink for rate in network.flow_rates),
            tcp_window=int(network.tcp_window / cell.shrink),
            wan=replace(network.wan, **_link(network.wan, cell)),
        ),
        cluster=replace(cell.cluster, server=servers),
        run=replace(cell.run, bucket_size=None if size is None else int(size / cell.shrink)),
        algo=replace(algo, options={**algo.options, **smaller, **shorter}),
    )


def _link(given: NetworkPart | LinkPart, cell: Cell) -> dict[str, Any]:
    """The values of a link in the scale model."""
    return {key: _scaled(key, getattr(given, key), cell) for key in ("bandwidth", *_TIMES)}


def _scaled(key: str, value: float | None, cell: Cell) -> float | None:
    """A value of a link in the scale model."""
    if value is None:
        return None
    if key == "bandwidth":
        return value * cell.haste / cell.shrink
    return value / cell.haste if key in _TIMES else value


def _smaller(key: str, value: float | str, factor: float) -> float | str:
    """A number, or a text with a unit of size, divided."""
    return f"{int(units.parse(key, value, units.BYTES) / factor)}B" if isinstance(value, str) else value / factor


def _shorter(key: str, value: float | str, factor: float) -> float | str:
    """A number, or a text with a unit of time, divided."""
    return f"{units.parse(key, value, units.SECONDS) / factor:.10g}s" if isinstance(value, str) else value / factor
