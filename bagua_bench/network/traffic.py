"""Compares what the interfaces of the servers counted with what the communicators counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LEAST, _MOST = 0.98, 1.10  # allowed ratio: headers take 4 %, acknowledgements of full segments 3 % at most
_SMALL = 20_000  # bytes per step below which single packets and headers are most of it


def compare(ranks: list[dict[str, Any]], ranks_per_server: int) -> dict[str, Any]:
    """Bytes per step that every server sent to others: by its interface, and by its communicators.

    The latter is None where the ranks of a server talk to ranks both inside and outside of it: nobody counts those
    apart.
    """
    servers = [ranks[first : first + ranks_per_server] for first in range(0, len(ranks), ranks_per_server)]
    steps = len(ranks[0]["seconds"])
    counted = [_counted(server) / steps for server in servers]
    mixed = ranks_per_server > 1 and any(rank["sent"]["flat"] for rank in ranks)
    return {
        "interface": [server[0]["interface"]["bytes"] / steps for server in servers],
        "counted": None if mixed else counted,
        "retransmits": sum(server[0]["interface"]["retransmits"] for server in servers),
    }


def _counted(server: list[dict[str, Any]]) -> float:
    return float(sum(rank["sent"]["flat"] + rank["sent"]["inter"] for rank in server))


def flags(traffic: dict[str, Any]) -> Iterator[str]:
    """Servers whose interface and communicators do not agree."""
    for server, (seen, said) in enumerate(zip(traffic["interface"], traffic["counted"] or (), strict=False)):
        if not _LEAST * said <= seen <= _MOST * said + _SMALL:
            yield f"server {server}: its interface sent {seen:.0f} bytes per step, its ranks counted {said:.0f}"
