"""All-reduces over long paths, with the number of streams that the transport chooses, beside gloo.

Over the backend that this machine has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import machine, star
from tools.transport import torch_bench, wan

RANKS = 2
BYTES = 16 << 20  # of the tensor
_CONNECTIONS = 2 * wan.CONNECTIONS  # those for messages, too


@dataclass(frozen=True)
class Far:
    """An all-reduce over one path. Seconds: of the slowest rank, medians over the rounds.

    of_line: what a ring moves over each line, without headers, in that time, as a share of the line's rate.
    """

    line: float  # bit/s
    round_trip: float  # seconds
    loss: float
    seconds: float
    gloo: float
    of_line: float


def measure(line: float, losses: Sequence[float], rounds: int) -> Iterator[Far]:
    """Every path; line in bit/s, shares of packets lost."""
    for round_trip in wan.ROUND_TRIPS:
        for loss in losses:
            yield _path(line, round_trip, loss, rounds)


def _path(line: float, round_trip: float, loss: float, rounds: int) -> Far:
    links = (Link(line, round_trip / 2, 0.0, loss),) * RANKS
    backend = machine.choose("auto", wan.CONTROL)
    shape, variables = Shape(links, backend, wan.CONTROL, LINUX_WINDOW, _CONNECTIONS, 0), {"BAGUA_NET_STREAMS": "auto"}
    with star.up(shape) as network, torch_bench.ranks(torch_bench.RANK, network.hosts, 1, variables) as ranks:
        # One that is not counted would take gloo a minute, and both have moved something before.
        row = torch_bench.ask(ranks, "all_reduce", BYTES, 1, rounds, warm=False)
    moved = 2 * (RANKS - 1) / RANKS * BYTES
    return Far(line, round_trip, loss, row["bagua_net"], row["gloo"], moved * 8 / row["bagua_net"] / line)
