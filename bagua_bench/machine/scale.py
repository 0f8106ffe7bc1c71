"""Scale models: emulated or simulated runs that send a fraction of the bytes. No torch import."""

from __future__ import annotations

from dataclasses import replace

from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell


def scale_model(cell: Cell) -> Cell:
    """The cell to run instead of a cell: rates, TCP windows and buckets shrink like the tensors; times stay the same.

    A transfer then takes as long, relative to computing and to the latency, as in the original, with a fraction of the
    bytes: 100 Gbit/s networks fit on a small machine.
    """
    factor, network, algo = cell.shrink, cell.network, cell.algo
    if factor == 1:
        return cell
    smaller = {key: _smaller(f"algo.{key}", algo.options[key], factor) for key in facts.algorithm(algo).in_bytes}
    links = cell.cluster.server.items()
    servers = {number: {key: _slower(key, link[key], factor) for key in link} for number, link in links}
    return replace(
        cell,
        network=replace(
            network,
            bandwidth=_slower("bandwidth", network.bandwidth, factor),
            tcp_window=int(network.tcp_window / factor),
        ),
        cluster=replace(cell.cluster, server=servers),
        run=replace(cell.run, bucket_size=_fewer(cell.run.bucket_size, factor)),
        algo=replace(algo, options={**algo.options, **smaller}),
    )


def _slower(key: str, value: float | None, factor: float) -> float | None:
    """A link's value: a bandwidth is divided, others are unchanged."""
    return value if value is None or key != "bandwidth" else value / factor


def _fewer(nbytes: int | None, factor: float) -> int | None:
    return None if nbytes is None else int(nbytes / factor)


def _smaller(key: str, value: float | str, factor: float) -> float | str:
    """A number, or a text with a unit, divided."""
    if isinstance(value, str):
        return f"{int(units.parse(key, value, units.BYTES) / factor)}B"
    return value / factor
