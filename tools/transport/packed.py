"""All-reduces whose floats travel as 8-bit integers, beside exact ones: how fast they are, and how wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from bagua_bench.configuration.network_shape import INT8
from tools.transport import shaped, torch_bench

LINKS = (0.2e9, 1e9, 10e9, None)  # bit/s of all connections of a server together; None: unlimited
SIZES = (1 << 20, 16 << 20, 64 << 20)  # bytes of float32
PER_SERVER = (1, 2)  # ranks, on two servers
_EXACT = "bagua_net"
_ELEMENTS = 1 << 20  # of the sum whose error is measured


@dataclass(frozen=True)
class Packed:
    """An all-reduce, exact and with int8 on the wire. Seconds: of the slowest rank, medians over the rounds.

    error: root of the mean square of the errors, by that of the exact sums, of normally distributed elements.
    """

    link: float | None  # bit/s
    ranks: int
    size: int  # bytes
    exact: float  # seconds
    int8: float  # seconds
    error: float

    @property
    def times_as_fast(self) -> float:
        """With int8."""
        return self.exact / self.int8


def measure(rounds: int) -> Iterator[Packed]:
    """Every size over every link; needs root."""
    for per_server in PER_SERVER:
        for link in LINKS:
            yield from _over(link, per_server, rounds)


def _over(link: float | None, per_server: int, rounds: int) -> Iterator[Packed]:
    variables = {"BAGUA_NET_STREAMS": "4"}
    with shaped.pair() as sites, torch_bench.ranks(torch_bench.RANK, sites, per_server, variables) as ranks:
        error = fmean(answer[INT8] for answer in torch_bench.ask_all(ranks, {"error": _ELEMENTS, "ways": [INT8]}))
        time.sleep(0.2)
        for site in sites if link is not None else ():
            shaped.limit_flows(site, {}, link)
        for size in SIZES:
            row = torch_bench.ask(ranks, "all_reduce", size, 3, rounds, ways=(_EXACT, INT8))
            yield Packed(link, len(ranks), size, row[_EXACT], row[INT8], error)
