"""The parameters that calibration may move, with their physical ranges. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bagua_bench.configuration.network_shape import HEADERS, MTU
from bagua_bench.configuration.physics import Physics


@dataclass(frozen=True)
class Parameter:
    """One physical quantity: a field of `Physics` (of one transport only, if named), its range and start."""

    name: str
    low: float
    high: float
    start: float
    why: str
    transport: str | None = None

    @property
    def key(self) -> str:
        """Name in reports."""
        return self.name if self.transport is None else f"{self.name} ({self.transport})"


PAPER = (
    Parameter(
        "efficiency_ring", 0.93, 1.0, 0.965, "TCP/IP headers cost 3.5 %; a shaper that counts loosely gives some back"
    ),
    Parameter("efficiency_direct", 0.70, 0.99, 0.85, "TCP/IP headers cost 3.5 %, and flows that collide more"),
    Parameter("ring", 1.5e9, 8e9, 4e9, "NCCL's sockets leave most of 100 Gbit/s idle"),
    Parameter("ring", 2e9, 10e9, 5.5e9, "more streams than NCCL's own", "nccl_bagua_net"),
    Parameter("fade", 0.0, 0.4, 0.1, "rings wait for the slowest of more flows"),
    Parameter("process", 1e9, 8e9, 3e9, "one leader process with many peers"),
    Parameter("call", 0.0, 1e-3, 3e-4, "kernel launches, and a host wait for each"),
    Parameter("hop", 1.0, 4.0, 2.0, "one way, up to two round trips if both sides agree first"),
    Parameter("gather_hop", 1 / 15, 1.0, 2 / 15, "from direct sends, usual: the hops of an all-to-all, to a ring"),
    Parameter("window", 1e6, 1.6e7, 4.2e6, "Linux' default limit of the send buffer is 4 MiB"),
    Parameter("incast", 2.5e5, 1.6e7, 1.5e6, "usual: tc netem's queue, 1,000 packets of 1.5 kB; a switch: 12-32 MB"),
    Parameter("shaped", 5e8, 6e9, 1.5e9, "a software queue that adds delay handles 1-2 million packets/s"),
    Parameter("servers", 1e9, 8e9, 3e9, "parameter servers on TCP"),
    Parameter("servers_window", 2e6, 5e7, 1e7, "credit of a worker"),
)
"""Fitted to the published figures: one value for all their points."""

PUBLISHED: dict[str, Any] = {
    "carry_over": 1.0,  # what is sent after a step is waited for in the next one's backward pass
}
"""Known parameters of the published runs."""

OTHER_CAMPAIGN = tuple(p for p in PAPER if p.key in ("ring", "process"))
"""Parameters that may differ between two campaigns on the same machines: the rates of the software that was run."""

_FULL = (MTU - HEADERS) / MTU  # share of payload in full segments, which the backend `link` counts exactly

NAMESPACES = (
    Parameter("efficiency_ring", 0.70, _FULL, 0.9, "headers, and acknowledgements that wait behind data"),
    Parameter("efficiency_direct", 0.50, _FULL, 0.85, "the same with several flows at a time"),
    Parameter("efficiency_fade", 0.0, 0.3, 0.1, "more processes on the same cores, and each waits for the slowest"),
    Parameter("latency", 2e-5, 1e-3, 1.5e-4, "a packet and its answer take 0.1 ms idle, more beside work"),
    Parameter("call", 0.0, 5e-3, 5e-4, "a collective called through torch.distributed"),
)
"""Parameters of runs in network namespaces over gloo that are not known beforehand."""

GLOO: dict[str, Any] = {
    "lanes": 2.0,  # a process group has two threads
    "ring_hop": 2.0,  # a pair sends once the receiver has said that it is ready: a round trip
    "segments": 2.0,  # two segments of every chunk are in flight
    "hop": 2.0,
    "gather_hop": 0.0,  # the suite's own all-gather is direct sends
    "channels": 1.0,  # one connection per pair of ranks
    "packet": 65536.0,  # TCP hands over up to 64 KiB at a time, and the emulator forwards it whole
    "packets": 9.6,  # a buffer holds 16 (`Shape.segments`), and the window is 60 % of it
    "window": 2.5e6,  # out of 4 MiB: a segment of 1448 bytes takes 2304 of buffer, and the window is rounded down
    **dict.fromkeys(("ring", "process"), 1e12),  # only the line and the window limit it
}
"""Known parameters of the same runs, from how gloo and the kernel work."""

BAGUA_NET: dict[str, Any] = {key: GLOO[key] for key in ("packet", "packets", "window", "ring", "process")}
"""Known parameters of runs over Bagua-Net: a sender waits for nobody, and a group does one thing at a time."""


def physics(values: Sequence[float], chosen: Sequence[Parameter], base: Mapping[str, Any], transport: str) -> Physics:
    """`Physics` for a transport: `base` with the values of the chosen parameters."""
    given = {key: value for key, value in base.items() if key != "transport"}
    given |= dict((base.get("transport") or {}).get(transport, {}))
    given |= {p.name: value for p, value in zip(chosen, values, strict=True) if p.transport is None}
    given |= {p.name: value for p, value in zip(chosen, values, strict=True) if p.transport == transport}
    return Physics(**{key: float(value) for key, value in given.items()})


def tree(values: Sequence[float], chosen: Sequence[Parameter], base: Mapping[str, Any]) -> dict[str, Any]:
    """The same values as the key `physics` of a cluster file."""
    found = {**base, "transport": {name: dict(own) for name, own in (base.get("transport") or {}).items()}}
    for p, value in zip(chosen, values, strict=True):
        rounded = float(f"{value:.4g}")
        if p.transport is None:
            found[p.name] = rounded
        else:
            found["transport"].setdefault(p.transport, {})[p.name] = rounded
    return found if found["transport"] else {key: value for key, value in found.items() if key != "transport"}
