"""Physical parameters of a cluster: what they mean, their defaults and what values are possible. No torch import."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import Cell, ClusterPart

BUFFER = 4.0 * 2**20
"""Size of the socket buffers that windows are calibrated with, bytes."""


@dataclass(frozen=True)
class _Range:
    """The values that a parameter may have."""

    low: float
    high: float
    words: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


_LEAST = 1e-9  # in place of 0, where a division by it would follow
Positive = Annotated[float, _Range(_LEAST, math.inf, "must be positive")]
NotNegative = Annotated[float, _Range(0.0, math.inf, "must be at least 0")]
Count = Annotated[float, _Range(1.0, math.inf, "must be at least 1")]
Share = Annotated[float, _Range(_LEAST, 1.0, "must be above 0 and at most 1")]
Fraction = Annotated[float, _Range(0.0, 1.0, "must be from 0 to 1")]


@dataclass(frozen=True)
class Physics:
    """Parameters of a cluster, in seconds, bytes and bytes/s; `bagua_bench.calibrate.parameters` gives their ranges."""

    line: Positive = 12.5e9
    """Rate of a server's network interface where the network group sets none."""
    shaped: Positive = math.inf
    """The same where software adds the latency (`network.software_delay`), a single queue of so many packets/s."""
    efficiency_ring: Share = 0.95
    """Share of the line rate that payload gets in ring collectives: headers, chunk boundaries."""
    efficiency_direct: Share = 0.85
    """The same in exchanges with several peers, whose flows collide."""
    efficiency_fade: NotNegative = 0.0
    """Exponent by which both fall with half the servers that wait for each other: emulated ones share the cores."""
    process: Positive = 5e9
    """Rate of the software of one process that sends directly, however fast the line is."""
    ring: Positive = 4e9
    """Rate of a ring's software from one server to the next."""
    channels: Count = 4.0
    """Connections of a ring from one server to the next."""
    fade: NotNegative = 0.0
    """Exponent by which the rate `ring` falls with the number of servers: all wait for the slowest flow."""
    latency: NotNegative = 15e-6
    """One-way latency of a message between servers, without what the network group adds."""
    ring_hop: NotNegative = 1.0
    """One-way latencies per hop of a ring: two if the receiver first says that it is ready, as in gloo's TCP pairs."""
    segments: Count = 1.0
    """Segments of a ring's chunk in flight at a time; with several, the latency of a hop hides behind the others."""
    hop: NotNegative = 1.0
    """One-way latencies per direct send: more than one if sender and receiver agree first."""
    gather_hop: NotNegative = 1.0
    """One-way latencies of an all-gather per server passed: 1 is a ring; at least `hop` in all, as in direct sends."""
    window: Positive = 4 * 2**20
    """Most bytes a connection has in flight with socket buffers of 4 MiB; proportional to the size of the buffers."""
    incast: Positive = math.inf
    """Most bytes that many senders have in flight to one interface; a switch's port drops those beyond its queue."""
    packet: NotNegative = 0.0
    """Bytes of a packet that a link forwards only as a whole: an emulator is handed 64 KiB at a time."""
    packets: Count = 1.0
    """Least number of packets in a window, where latency was asked for."""
    lanes: Count = 1.0
    """Collectives that the transport runs at a time if it is handed several; their bytes share the line."""
    call: NotNegative = 0.0
    """Host time to launch a collective and to notice its end; the bucket's other work waits meanwhile."""
    packing: Positive = 2.3e9
    """Bytes/s of floats that a rank packs to 8 bits, adds up and unpacks in an all-reduce (`transport.wire`)."""
    inside: Positive = 134e9
    """Bus bandwidth of collectives inside a server."""
    inside_latency: NotNegative = 60e-6
    """Latency of a collective inside a server."""
    inside_hop: NotNegative = 1.9e-6
    """Latency of one hop inside a server, within a ring over all ranks: NCCL's own figure for NVLink."""
    carry_over: Fraction = 0.0
    """Share of the communication after an optimizer step that the next step's computing hides. 0 in this suite."""
    servers: Positive = 5e9
    """Rate of a parameter server's software."""
    uncertainty: NotNegative = 0.25
    """Relative error that 90 % of the fitted points stay within, widened by what the fit gained from its parameters; or
    a guess."""
    servers_window: Positive = 16 * 2**20
    """Bytes that a worker may have in flight to all parameter servers together: its credit."""
    partition: Positive = 4_096_000.0
    """Bytes that a parameter server answers as a whole."""


def physics_of(cluster: ClusterPart, transport: str) -> Physics:
    """A cluster's parameters for the transport of this name; the transport's own override the cluster's."""
    given = {**cluster.physics, **cluster.transports.get(transport, {})}
    return replace(Physics(), **{key: float(given[key]) for key in given if key not in (*_OTHER, *_RETIRED)})


_OTHER = ("transport", "fit")
"""Keys of a cluster's `physics` that are no parameters: those of single transports, and what was fitted."""
_RETIRED = ("connection", "interference", "efficiency_servers", "halving")
"""Parameters that records of older versions have."""


def nearest(key: str, value: float) -> float:
    """The value of a parameter nearest to this one that is possible."""
    allowed = _ranges()[key]
    return min(max(value, allowed.low), allowed.high)


def problems(cell: Cell) -> Iterator[str]:
    """Problems of the cluster's physical parameters, one line each."""
    given = cell.cluster.physics
    yield from _problems("cluster.physics", {key: value for key, value in given.items() if key not in _OTHER}, _OTHER)
    transports = given.get("transport") or {}
    if not isinstance(transports, Mapping):
        yield f"cluster.physics.transport={transports}: expected the name of a transport after it, then its parameters"
        return
    known = conf_folder.names("transport")
    for name, own in transports.items():
        path = f"cluster.physics.transport.{name}"
        if name not in known:
            yield f"{path}={own}: no such transport; allowed: {', '.join(known)}"
        elif isinstance(own, Mapping):
            yield from _problems(path, own)
        else:
            yield f"{path}={own}: expected a parameter after it, as in {path}.ring=5e9"


def _problems(path: str, given: Mapping[str, Any], other: tuple[str, ...] = ()) -> Iterator[str]:
    ranges = _ranges()
    for key, value in given.items():
        if key not in ranges:
            yield f"{path}.{key}={value}: no such key; allowed: {', '.join([*sorted(ranges), *other])}"
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            yield f"{path}.{key}={value}: must be a number without a unit; s, bytes and bytes/s are meant"
            continue
        if number not in ranges[key]:
            yield f"{path}.{key}={value}: {ranges[key].words}"


@cache
def _ranges() -> dict[str, _Range]:
    hints = get_type_hints(Physics, include_extras=True)
    return {field.name: get_args(hints[field.name])[1] for field in fields(Physics)}
