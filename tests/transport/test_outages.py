"""A network that is gone for a while; `python -m tools.transport outages` tries more time-outs and shares of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.transport.conftest import NEWEST
from tools.transport import faults, outages, shaped
from tools.transport.pair import GROUP, Pair

_TCP_RTO_MAX_MS = 44  # linux/tcp.h
Ranks = tuple[Sequence[shaped.Site], list[Any]]


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="module")  # a process can have one pair of sites at a time
def ranks(built: tuple[Path, Path]) -> Iterator[Ranks]:
    with outages.ranks() as found:
        yield found


def _tries_often() -> bool:
    """Whether this kernel can be told to."""
    with socket.socket() as s, suppress(OSError):
        return s.getsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS) > 0
    return False


@pytest.mark.parametrize(
    ("timeout", "share", "direction"),
    [(2, 0.5, "back"), (2, 0.95, "there"), (2, 0.95, "both"), (5, 0.8, "there"), (5, 0.95, "both")],
)
def test_a_group_goes_on_after_an_outage_that_is_shorter_than_its_time_out(
    ranks: Ranks, timeout: float, share: float, direction: str
) -> None:
    """Busy, idle, and waiting for a rank that is late. Older kernels may let busy streams wait as long again."""
    if share > 0.5 and not _tries_often():
        pytest.skip("this kernel has no TCP_RTO_MAX_MS (Linux 6.15)")
    outage = outages.suffer(*ranks, timeout, share, direction)
    assert outage.errors == {}
    assert set(outage.resumed) == {"busy", "idle", "waiting"}


def test_data_moves_again_before_the_outage_has_lasted_twice_as_long(ranks: Ranks) -> None:
    """TCP of itself, which doubles its pause from 0.2 s on, tries 6.2 and 12.6 s after the beginning."""
    if not _tries_often():
        pytest.skip("this kernel has no TCP_RTO_MAX_MS (Linux 6.15)")
    outage = outages.suffer(*ranks, 10, 0.68, "there")
    assert outage.moved is not None
    assert outage.moved < 0.5 * outage.seconds


def test_what_was_lost_both_ways_needs_no_second_attempt(ranks: Ranks) -> None:
    """TCP tries a second after the outage, but then takes a late answer for a sign that nothing was lost."""
    if not _tries_often():
        pytest.skip("this kernel has no TCP_RTO_MAX_MS (Linux 6.15)")
    found = [outages.suffer(*ranks, 2, 0.8, "both") for _ in range(4)]
    assert not any(outage.errors for outage in found)
    # Half of them take longer than this if nobody tells TCP.
    assert max(outage.resumed["busy"] / outage.seconds for outage in found) < 0.9


def test_a_longer_outage_is_an_error_that_names_the_time_out(ranks: Ranks) -> None:
    outage = outages.suffer(*ranks, 2, 3.0, "both")
    assert {"busy 0", "busy 1", "waiting 0"} <= set(outage.errors)
    for error in outage.errors.values():
        assert "time-out of 2000 ms" in error


@pytest.mark.parametrize("helpers", ["0", "1"])
def test_nccl_s_plugin_goes_on_too(ranks: Ranks, built: tuple[Path, Path], helpers: str) -> None:
    if not _tries_often():
        pytest.skip("this kernel has no TCP_RTO_MAX_MS (Linux 6.15)")
    with _streaming(ranks[0], built, NEWEST, helpers) as pair:
        with shaped.swallowed(*ranks[0], among=ranks[0]):
            time.sleep(0.95 * faults.TIMEOUT)
        assert [side.hear()["result"] for side in (pair.a, pair.b)] == [0, 0]


@pytest.mark.parametrize("symbol", [NEWEST, GROUP])
def test_the_variable_sets_the_time_out(ranks: Ranks, built: tuple[Path, Path], symbol: str) -> None:
    """Also of a group, whose own is ten times as long here."""
    with _streaming(ranks[0], built, symbol, "0", count=10_000) as pair:
        began = time.monotonic()
        with shaped.swallowed(*ranks[0], among=ranks[0]):
            assert [side.hear()["result"] for side in (pair.a, pair.b)] == [6, 6]
            assert 1 < (time.monotonic() - began) / faults.TIMEOUT < 5


@contextmanager
def _streaming(
    sites: Sequence[shaped.Site], built: tuple[Path, Path], symbol: str, helpers: str, count: int = 100
) -> Iterator[Pair]:
    variables = {"NCCL_SOCKET_IFNAME": "bb0", "BAGUA_NET_TIMEOUT": str(faults.TIMEOUT), "BAGUA_NET_HELPERS": helpers}
    with Pair(*built, symbol, variables, (sites[0].prefix, sites[1].prefix)) as pair:
        pair.link()
        plan = {"size": 4_000_000, "count": count, "window": 8, "check": 1}
        pair.a.tell("stream", name="x.s", sending=True, **plan)
        pair.b.tell("stream", name="x.r", sending=False, **plan)
        time.sleep(0.2)
        yield pair
