"""Compares the bytes that the servers' interfaces counted with those that the communicators counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bagua_bench.results.result import RankResult

_LEAST, _MOST = 0.98, 1.10  # allowed ratio: headers take 4 %, acknowledgements of full segments 3 % at most
_SMALL = 20_000  # bytes per step that single packets and headers may add


def compare(ranks: Sequence[RankResult], ranks_per_server: int) -> dict[str, Any]:
    """Bytes per step that every server sent, as counted by its interface and by its communicators.

    `bound`: ranks of one server also send to each other, which is not counted separately, so the interface sends less.
    """
    servers = [ranks[first : first + ranks_per_server] for first in range(0, len(ranks), ranks_per_server)]
    steps = len(ranks[0].seconds)
    counted = [_counted(server) / steps for server in servers]
    interfaces = [server[0].interface for server in servers]
    seen = [interface for interface in interfaces if interface is not None]
    assert len(seen) == len(servers), "every worker counts"
    return {
        "interface": [interface.bytes / steps for interface in seen],
        "counted": counted,
        "bound": ranks_per_server > 1 and any(rank.sent["flat"] for rank in ranks),
        "retransmits": sum(interface.retransmits for interface in seen),
    }


def _counted(server: Sequence[RankResult]) -> float:
    return float(sum(rank.sent["flat"] + rank.sent["inter"] for rank in server))


def flags(traffic: dict[str, Any]) -> Iterator[str]:
    """Lines on servers whose interface and communicators do not agree."""
    least = 0.0 if traffic["bound"] else _LEAST
    for server, (seen, said) in enumerate(zip(traffic["interface"], traffic["counted"], strict=True)):
        if not least * said <= seen <= _MOST * said + _SMALL:
            yield f"server {server}: its interface sent {seen:.0f} bytes per step, its ranks counted {said:.0f}"
