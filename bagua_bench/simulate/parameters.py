"""The parameters that calibration may move, with their physical ranges. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bagua_bench.simulate.cluster import Physics


@dataclass(frozen=True)
class Parameter:
    """One physical quantity: a field of `Physics` (of one transport only, if named), its range and where to begin."""

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
    Parameter("efficiency_ring", 0.85, 0.99, 0.95, "TCP/IP headers cost 4-6 %, a shaper's tolerance some more"),
    Parameter("efficiency_direct", 0.70, 0.99, 0.85, "the same, and many flows that collide"),
    Parameter("ring", 1.5e9, 8e9, 4e9, "NCCL's sockets leave most of 100 Gbit/s idle"),
    Parameter("ring", 2e9, 10e9, 5.5e9, "more streams than NCCL's own", "nccl_bagua_net"),
    Parameter("fade", 0.0, 0.4, 0.1, "rings wait for the slowest of more flows"),
    Parameter("connection", 1e9, 3e9, 2e9, "one TCP stream: 8-24 Gbit/s of 100"),
    Parameter("process", 1e9, 8e9, 3e9, "one leader process with many peers"),
    Parameter("call", 0.0, 1e-3, 3e-4, "kernel launches and a wait of the host for each"),
    Parameter("hop", 1.0, 4.0, 2.0, "one way, up to two round trips where both sides agree first"),
    Parameter("gather_hop", 1 / 15, 1.0, 0.3, "direct sends to a ring"),
    Parameter("window", 1e6, 1.6e7, 4.2e6, "Linux' default limit of the send buffer is 4 MiB"),
    Parameter("shaped", 5e8, 6e9, 1.6e9, "a software queue that delays handles 1-2 million packets/s"),
    Parameter("carry_over", 0.0, 1.0, 0.5, "share of the exchange after the step that the next one hid"),
    Parameter("interference", 0.0, 0.5, 0.05, "kernels and copies beside communication"),
    Parameter("efficiency_servers", 0.70, 0.99, 0.85, "as efficiency_direct"),
    Parameter("servers", 1e9, 8e9, 3e9, "parameter servers on TCP"),
    Parameter("servers_window", 2e6, 5e7, 1e7, "credit of a worker"),
)
"""Of the published figures: one value for all their points."""

OTHER_CAMPAIGN = tuple(p for p in PAPER if p.key in ("ring", "process", "servers"))
"""What may differ between two campaigns on the same machines: the software's rates."""

NAMESPACES = (
    Parameter("efficiency_ring", 0.80, 1.0, 0.95, "headers, and the emulated link's own tolerance"),
    Parameter("efficiency_direct", 0.70, 1.0, 0.9, "the same with flows that collide"),
    Parameter("ring", 1e8, 3e9, 8e8, "gloo on loopback and shared cores: 5-25 Gbit/s"),
    Parameter("process", 1e8, 3e9, 8e8, "as ring"),
    Parameter("connection", 1e8, 3e9, 8e8, "as ring"),
    Parameter("latency", 5e-5, 1e-2, 3e-4, "gloo's small all-reduce takes about 0.3 ms"),
    Parameter("hop", 1.0, 4.0, 1.0, "as above"),
    Parameter("gather_hop", 1 / 15, 2.0, 1.0, "gloo's all-gather is a ring"),
    Parameter("interference", 0.0, 1.0, 0.05, "cores shared with communication"),
)
"""Of emulated runs in network namespaces, over gloo."""


def physics(values: Sequence[float], chosen: Sequence[Parameter], base: Mapping[str, Any], transport: str) -> Physics:
    """`Physics` over a transport: `base`, with the values of the parameters in it."""
    given = {key: value for key, value in base.items() if key != "transport"}
    given |= dict((base.get("transport") or {}).get(transport, {}))
    given |= {p.name: value for p, value in zip(chosen, values, strict=True) if p.transport is None}
    given |= {p.name: value for p, value in zip(chosen, values, strict=True) if p.transport == transport}
    return Physics(**{key: float(value) for key, value in given.items()})


def tree(values: Sequence[float], chosen: Sequence[Parameter], base: Mapping[str, Any]) -> dict[str, Any]:
    """The same as the key `physics` of a cluster file."""
    found = {**base, "transport": {name: dict(own) for name, own in (base.get("transport") or {}).items()}}
    for p, value in zip(chosen, values, strict=True):
        rounded = float(f"{value:.4g}")
        if p.transport is None:
            found[p.name] = rounded
        else:
            found["transport"].setdefault(p.transport, {})[p.name] = rounded
    return found if found["transport"] else {key: value for key, value in found.items() if key != "transport"}
