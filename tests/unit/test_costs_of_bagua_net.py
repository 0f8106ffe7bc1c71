"""Costs of the collectives that Bagua-Net's groups have of their own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_bench.configuration.physics import Physics
from bagua_bench.machine.program import Collective
from bagua_bench.simulate.bagua_net import BETWEEN, packed
from bagua_bench.simulate.cluster import PART, Cluster, Layout, Links, cluster_of
from bagua_bench.simulate.costs import seconds
from tests.catalogue import resolved
from tests.unit.test_costs import IDEAL, cost

KIB, MB = 1024, 10**6


def group(n: int, g: int = 1, physics: dict[str, float] | None = None, **links: Any) -> Cluster:
    """Servers of 1 GB/s without latency."""
    return Cluster(replace(IDEAL, **(physics or {})), Links(1e9, grouped=True, **links), Layout(n, g))


def late(kind: str, nbytes: int, n: int, g: int = 1) -> float:
    """Latencies in the time of a collective."""
    return cost(kind, nbytes, group(n, g, {"latency": 1.0})) - cost(kind, nbytes, group(n, g))


@given(n=st.integers(1, 5), g=st.integers(0, 3))
def test_halving_takes_fewer_hops_and_bytes_than_a_ring(n: int, g: int) -> None:
    """Of 2^n servers of 2^g ranks: the parts of ranks on one server never leave it."""
    assert late("all_reduce", MB, 2**n, 2**g) == pytest.approx(2 * n)
    assert cost("all_reduce", 10**9, group(2**n, 2**g)) == pytest.approx(2 * (1 - 1 / 2**n))


@given(n=st.sampled_from([3, 5, 6, 7, 9]), g=st.integers(1, 3))
def test_other_numbers_of_ranks_form_a_ring(n: int, g: int) -> None:
    assert late("all_reduce", MB, n, g) == pytest.approx(2 * (n - 1), rel=1e-3)
    assert cost("all_reduce", 10**9, group(n, g)) == pytest.approx(2 * (1 - 1 / (n * g)))


def test_small_all_reduces_take_few_steps() -> None:
    assert late("all_reduce", 32 * KIB, 8) == pytest.approx(3)
    assert late("all_reduce", 32 * KIB, 7) == pytest.approx(2 + 2), "three hand theirs over, and get it back"
    assert cost("all_reduce", 32 * KIB, group(8)) == pytest.approx(3 * 32 * KIB / 1e9)


def test_all_gathers_are_direct_where_parts_are_small_and_ranks_few() -> None:
    assert late("all_gather", 32 * KIB, 8) == pytest.approx(1)
    assert late("all_gather", 32 * KIB, 16) == pytest.approx(4)
    assert late("all_gather", 33 * KIB, 8) == pytest.approx(7)
    for n, g in ((8, 1), (4, 2)):
        assert cost("all_gather", 32 * KIB, group(n, g)) == pytest.approx(g * (8 - g) * 32 * KIB / 1e9)
    assert cost("all_gather", MB, group(8)) == pytest.approx(7 * MB / 1e9)


def test_slices_of_a_ring_s_blocks_hide_its_latency() -> None:
    """Blocks of 2 MiB in eight slices: a hop takes as long as its block, or a slice and the latency."""
    block = 2 * 2**20
    for hop in (1e-3, 10e-3):
        found = cost("all_reduce", 3 * block, group(3, physics={"latency": hop}))
        assert found == pytest.approx(4 * max(block / 1e9, block / 8 / 1e9 + hop))


def test_broadcast_and_reduce_go_from_one_rank_to_the_next() -> None:
    for kind, piece in (("broadcast", 1024 * KIB), ("reduce", 256 * KIB)):
        assert late(kind, MB, 8) == pytest.approx(7)
        assert cost(kind, 10**9, group(8)) == pytest.approx((10**9 + 6 * piece) / 1e9)
        assert late(kind, MB, 3, 2) == pytest.approx(2)


def test_small_ones_go_along_a_tree() -> None:
    for kind, most in (("broadcast", 256 * KIB), ("reduce", 32 * KIB)):
        assert [late(kind, most, n) for n in (2, 5, 8)] == pytest.approx([1, 3, 3])
        assert late(kind, most, 4, 2) == pytest.approx(2), "one of three steps stays on a server"
        assert cost(kind, most, group(8)) == pytest.approx(3 * most / 1e9)
        assert late(kind, most + 1, 8) == pytest.approx(7), "from one rank to the next"
    far = Links(1e6, latency=1.0, grouped=True)
    assert cost("reduce", 32 * KIB, group(8, sites=2, far=far)) == pytest.approx(1 + 32 * KIB / 1e6, rel=0.01)


def test_what_small_operations_send_between_sites() -> None:
    """Two sites of four servers, a line of 1 MB/s and a second between them; the servers' own take next to nothing."""
    places = {"sites": 2, "far": Links(1e6, latency=1.0, grouped=True)}
    nbytes = 32 * KIB
    assert cost("all_reduce", nbytes, group(8, **places)) == pytest.approx(1 + 4 * nbytes / 1e6, rel=1e-3)
    assert cost("all_reduce", nbytes, group(6, **places)) == pytest.approx(4 + 4 * 3 * nbytes / 1e6, rel=1e-3)
    assert cost("all_reduce", nbytes, group(2, 3, **places)) == pytest.approx(4 + 4 * 3 * nbytes / 1e6, rel=1e-3)
    parts = 1 + 2 * 2 + 4 * 4 + 8 * 8  # over distances 1, 2, 4 and 8, of eight servers at most
    assert cost("all_gather", nbytes, group(16, **places)) == pytest.approx(2 + parts * nbytes / 1e6, rel=1e-3)


@pytest.mark.parametrize(("n", "sites"), [(4, 2), (16, 2), (16, 4)])
def test_only_the_smallest_parts_leave_a_site(n: int, sites: int) -> None:
    """Lines of 0.1 GB/s and a second between sites; nothing else takes time but the servers' own lines."""
    far = Links(1e8, latency=1.0, grouped=True)
    nbytes = 16 * MB
    near, between = 2 * (1 - sites / n) * nbytes / 1e9, 2 * (1 - 1 / sites) * nbytes / 1e8
    found = cost("all_reduce", nbytes, group(n, sites=sites, far=far))
    assert found == pytest.approx(near + between + 2 * math.log2(sites))


def test_ranks_of_a_place_have_connections_of_their_own() -> None:
    """Two servers of two ranks whose single connections carry 0.1 GB/s; and two sites of two servers."""
    here = {"flows": (1e8,)}
    assert cost("all_reduce", 16 * MB, group(2, 2, **here)) == pytest.approx(16 * MB / 2e8)
    far = Links(1e9, flows=(1e8,), grouped=True)
    near = cost("all_reduce", 16 * MB, group(4, sites=2, far=far))
    assert near == pytest.approx(16 * MB / 1e9 + 16 * MB / 2e8), "and the halves that stay have no limit"


@pytest.mark.parametrize(("nbytes", "streams"), [(MB, 4), (16 * PART, 4), (8 * PART, 3), (4 * PART, 1)])
def test_streams_have_a_part_of_what_is_long_enough(nbytes: int, streams: int) -> None:
    """Four ranks: of four parts that pass, the mean is 3/8 of all; of a ring of three, a third is one message."""
    found = group(4, streams=4, flows=(1e7,))
    assert cost("all_reduce", nbytes, found) == pytest.approx(1.5 * nbytes / (streams * 1e7))
    ring = group(3, streams=4, flows=(1e7,))
    assert cost("all_reduce", 3 * 2 * PART, ring) == pytest.approx(4 / 3 * 3 * 2 * PART / 2e7)


@given(nbytes=st.integers(1, 2**30), m=st.sampled_from([1, 2, 3, 4]), sites=st.sampled_from([2, 3, 4]),
       g=st.integers(1, 3), rate=st.floats(1e6, 1e9), latency=st.floats(0, 0.1),
       kind=st.sampled_from(sorted(BETWEEN)))  # fmt: skip
def test_sites_are_never_faster_than_one_place(
    kind: str, nbytes: int, m: int, sites: int, g: int, rate: float, latency: float
) -> None:
    far = Links(rate, latency, grouped=True)
    several = cost(kind, nbytes, group(m * sites, g, sites=sites, far=far))
    assert several >= cost(kind, nbytes, group(m * sites, g)) * (1 - 1e-9)


def test_a_cell_s_transport_says_whose_collectives_they_are() -> None:
    asked = ["mode=simulate", "cluster.servers=4"]
    assert cluster_of(resolved(*asked, "transport=bagua_net")).network.grouped
    assert not cluster_of(resolved(*asked, "transport=gloo")).network.grouped
    assert not cluster_of(resolved(*asked, "transport=nccl_bagua_net")).network.grouped


def test_floats_that_travel_as_8_bits_take_a_quarter_or_as_long_as_packing_them() -> None:
    """260 bytes of 1024, over 1 GB/s; packing goes on meanwhile."""
    call = Collective("all_reduce", packed(2**22), "flat", packs=2**24)
    assert call.nbytes == 2**24 * 260 / 1024
    slow = group(2, physics={"packing": 1e12})
    assert seconds(call, slow) == pytest.approx(cost("all_reduce", 2**24, slow) * 260 / 1024)
    assert seconds(call, group(2, physics={"packing": 1e9})) == pytest.approx(2**24 / 1e9)
    assert seconds(replace(call, level="intra"), group(1, 2, {"packing": 1e9, "inside": 1e12})) == pytest.approx(
        2**24 / 1e9
    )
    small = Collective("all_reduce", packed(2**14), "flat", packs=2**16)
    assert seconds(small, slow) == pytest.approx(cost("all_reduce", packed(2**14), slow), rel=1e-6), "still by halves"


@pytest.mark.parametrize("link", [200e6, 1e9, 10e9, None])
def test_the_rate_of_packing_is_what_was_measured(link: float | None) -> None:
    """Of all-reduces of 16 and 64 MiB by two ranks, each with a core."""
    measured = json.loads(Path("results/transport/int8.json").read_text())["int8"]
    rows = [row for row in measured if (row["link"], row["ranks"]) == (link, 2) and row["size"] >= 2**24]
    assert len(rows) == 2
    for row in rows:
        travelling = row["exact"] * packed(row["size"] // 4) / row["size"]
        assert max(travelling, row["size"] / Physics().packing) == pytest.approx(row["int8"], rel=0.15)
