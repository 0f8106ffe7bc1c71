"""The commands that check an answer. No torch import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bagua_bench.advise.answer import Answer
from bagua_bench.advise.ranking import Row
from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.resolve import has_cuda
from bagua_bench.configuration.variants import algorithm_part
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.cluster import cluster_of

_MOST_SERVERS = 4
_ELEMENTS = 3e6  # of a scale model that two cores can train


def commands(answer: Answer, arguments: Sequence[str]) -> list[str]:
    """Two that emulate the first and DDP at its best on this machine, with the model and network of `arguments`.

    The cluster is not larger than 4 servers of 1 rank, or one of each site, and the model a scale model.
    """
    rows = [answer.first, *([] if answer.rival is None or _is_first(answer) else [answer.rival])]
    return [
        f"bagua-bench run {' '.join([*_where(answer.base, arguments), *_over(row), *settings(row)])}" for row in rows
    ]


def _is_first(answer: Answer) -> bool:
    return answer.first.algorithm == facts.baseline()


def engine(row: Row) -> str:
    """How a row's algorithm is made for a model of one's own; empty for a peer."""
    cell = row.cell
    if facts.algorithm(cell.algo).peer:
        return ""
    options = ", ".join(f"{key}={value!r}" for key, value in _changed(cell).items())
    module, _, name = cell.algo.target.rpartition(".")
    chosen = _chosen(row)
    size = f", bucket_size={chosen['bucket_size']}" if "bucket_size" in chosen else ""
    channels = f", channels={chosen['channels']}" if "channels" in chosen else ""
    return f"Engine(model, optimizer, {module}.{name}({options}){size}{channels})"


def settings(row: Row) -> list[str]:
    """The arguments with which a row's algorithm runs as it was simulated."""
    cell = row.cell
    values = {f"algo.{key}": value for key, value in _changed(cell).items()}
    chosen = _chosen(row)
    if "bucket_size" in chosen:
        values["run.bucket_size"] = units.text(chosen["bucket_size"], units.BYTES)
    if "channels" in chosen:
        values["run.channels"] = chosen["channels"]
    return [f"algo={cell.algo.name}", *(f"{key}={_text(value)}" for key, value in values.items())]


def _chosen(row: Row) -> dict[str, int]:
    """Bucket size and channels where the engine has them; those that it would choose itself are left to it."""
    run = row.cell.run
    found = {"bucket_size": run.bucket_size, "channels": run.channels}
    return {key: value for key, value in found.items() if value is not None}


def _changed(cell: Cell) -> Mapping[str, Any]:
    """Options that are not the algorithm's own; a warm-up is the user's to choose."""
    own, declared = algorithm_part(cell.algo.name).options, facts.algorithm(cell.algo)
    warm_up = {choice.partition("=")[0] for choice in declared.warm_up_of_one}
    return {k: v for k, v in cell.algo.options.items() if v != own[k] and k not in warm_up}


def _where(base: Cell, arguments: Sequence[str]) -> Iterator[str]:
    """Mode, model, network and a cluster that this machine can emulate."""
    yield "mode=emulate"
    left_out = ("mode", "cluster", "transport", "compute.shrink", "compute.haste", "network.software_delay")
    for text in arguments:
        key = text.partition("=")[0].lstrip("+~")
        if not any(key == own or key.startswith(f"{own}.") for own in left_out):
            yield text
    if base.network.bandwidth is None:
        cluster = cluster_of(base)
        yield f"network.bandwidth={units.text(8 * cluster.physics.line, units.BITS_PER_SECOND)}"
    servers, sites = min(max(base.cluster.servers, 2), _MOST_SERVERS), base.network.sites
    yield f"cluster.servers={max(sites, servers - servers % sites)}"
    yield "run.steps=5"
    yield f"compute.shrink={_rounded(max(1.0, layers_of(base.task).elements / _ELEMENTS)):g}"


def _over(row: Row) -> Iterator[str]:
    """The transport that moves tensors of CPUs as the row's moves its own."""
    transport = row.cell.transport
    if "bagua_net" in (transport.backend, transport.plugin):
        yield "transport=bagua_net"
        yield f"transport.streams={transport.streams}"
    elif has_cuda():
        yield "transport=gloo"


def _rounded(value: float) -> float:
    """To one digit."""
    return float(f"{value:.0e}")


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
