"""Cost formulas: against NCCL's tuning model as torch ports it, and the properties they must have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch._inductor.comm_analysis as nccl
from hypothesis import given
from hypothesis import strategies as st

from algorithms.topology import shift_one
from bagua_bench.configuration.physics import Physics
from bagua_bench.machine.program import Collective
from bagua_bench.simulate.cluster import MSS, Cluster, Layout, Links, cluster_of
from bagua_bench.simulate.costs import BETWEEN, seconds
from tests.catalogue import resolved

IDEAL = Physics(
    line=1e9,
    efficiency_ring=1.0,
    efficiency_direct=1.0,
    ring=1e15,
    process=1e15,
    servers=1e15,
    channels=1.0,
    latency=0.0,
    window=1e15,
    servers_window=1e15,
    inside=1e15,
    inside_latency=0.0,
    inside_hop=0.0,
)


def ideal(servers: int, per_server: int = 1, network: Links | None = None, **physics: float) -> Cluster:
    return Cluster(replace(IDEAL, **physics), network or Links(), Layout(servers, per_server))


def cost(kind: str, nbytes: int, cluster: Cluster, level: str = "flat", offsets: tuple[int, ...] = (1,)) -> float:
    return seconds(Collective(kind, nbytes, level, offsets if kind in ("exchange", "pairs") else ()), cluster)


@pytest.mark.parametrize("servers", [3, 4, 16])
@pytest.mark.parametrize("nbytes", [2**20, 10 * 2**20, 100 * 2**20])
def test_ring_is_nccl_s_own_model_of_it(monkeypatch: pytest.MonkeyPatch, servers: int, nbytes: int) -> None:
    """Ring / Simple between servers of 8 GPUs, with NCCL's latencies per hop and its bus bandwidth."""
    bandwidth = 3.0  # GB/s of an interface
    patches: dict[str, Any] = {
        "get_inter_node_bw": lambda: bandwidth,
        "get_intra_node_bw": lambda: 120.0,
        "get_gpu_type": lambda: nccl.NVIDIA_GPU_TYPE.VOLTA,
        "detect_interconnect": lambda size: None,
    }
    for name, value in patches.items():
        monkeypatch.setattr(nccl, name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    expected = 1e-6 * nccl._nccl_algo_time(
        nbytes, 8 * servers, nccl.NCCL_COLL.ALL_REDUCE, nccl.NCCL_ALGO.RING, nccl.NCCL_PROTO.SIMPLE
    )
    base = 1e-6 * nccl.baseLat[nccl.NCCL_ALGO.RING][nccl.NCCL_PROTO.SIMPLE]
    hop = {where: 1e-6 * nccl.hwLat[where][nccl.NCCL_ALGO.RING][nccl.NCCL_PROTO.SIMPLE] for where in (0, 2)}
    cluster = ideal(servers, 8, line=1e9 * bandwidth, latency=hop[2], inside_hop=hop[0])
    assert base + cost("all_reduce", nbytes, cluster) == pytest.approx(expected, rel=1e-6)


def test_published_nvlink_all_reduces() -> None:
    """nccl-tests on 8 V100: 60 us + 1.75 S / 134 GB/s describes them within 30 % from 4 MB to 1 GB."""
    cluster = Cluster(Physics(), Links(), Layout(1, 8))
    for nbytes, measured in ((4e6, 151e-6), (64e6, 911e-6), (128e6, 1.78e-3), (1e9, 14.0e-3)):
        assert cost("all_reduce", int(nbytes), cluster) == pytest.approx(measured, rel=0.30)


SIZES = st.integers(10**3, 10**9)
WORLDS = st.integers(2, 300)


@given(nbytes=SIZES, n=WORLDS)
def test_bytes_through_an_interface(nbytes: int, n: int) -> None:
    """At 1 GB/s and no latency, a collective takes the bytes of its formula in nanoseconds."""
    cluster = ideal(n)
    expected = {
        "all_reduce": 2 * (n - 1) / n * nbytes,
        "all_gather": (n - 1) * nbytes,
        "all_to_all": (n - 1) / n * nbytes,
        "exchange": nbytes,
        "pairs": nbytes,
        "push_pull": 2 * (n - 1) / n * nbytes,
        "reduce": nbytes,
        "broadcast": nbytes,
    }
    for kind, value in expected.items():
        assert cost(kind, nbytes, cluster) == pytest.approx(1e-9 * value)
    assert expected["all_reduce"] < 2 * nbytes
    scattered = cost("all_to_all", nbytes // n * n, cluster) + cost("all_gather", nbytes // n, cluster)
    assert scattered == pytest.approx(cost("all_reduce", nbytes // n * n, cluster)), (
        "scatter-gather sends a ring's bytes"
    )


@given(n=WORLDS, g=st.integers(1, 8))
def test_latencies_are_the_rounds(n: int, g: int) -> None:
    slope = {kind: cost(kind, 1000, ideal(n, g, latency=1.0)) - cost(kind, 1000, ideal(n, g)) for kind in BETWEEN}
    assert slope["all_reduce"] == pytest.approx(2 * (n - 1))
    assert slope["all_gather"] == pytest.approx(n - 1)
    assert slope["all_to_all"] == pytest.approx(1)
    assert slope["exchange"] == pytest.approx(1)
    assert slope["reduce"] == pytest.approx(math.ceil(math.log2(n)))


@given(
    kind=st.sampled_from(sorted(BETWEEN)),
    nbytes=SIZES,
    n=st.integers(2, 64),
    rate=st.floats(1e6, 1e10),
    latency=st.floats(0, 0.1),
    loss=st.floats(0, 0.1),
    congestion=st.sampled_from(["cubic", "reno", "bbr"]),
)
def test_time_grows_with_size_latency_and_loss_and_falls_with_bandwidth(
    kind: str, nbytes: int, n: int, rate: float, latency: float, loss: float, congestion: str
) -> None:
    def at(nbytes: int = nbytes, rate: float = rate, latency: float = latency, loss: float = loss) -> float:
        network = Links(rate, latency, 0.0, loss, congestion)
        return cost(kind, nbytes, Cluster(Physics(), network, Layout(n, 4)))

    now = at() * (1 - 1e-9)
    assert at(nbytes=2 * nbytes) >= now
    assert at(latency=2 * latency + 1e-5) >= now
    assert at(loss=min(0.5, 2 * loss + 1e-4)) >= now
    assert at(rate=2 * rate) <= at() * (1 + 1e-9)


@given(nbytes=SIZES, rate=st.floats(1e6, 1e9), n=st.integers(2, 40))
def test_a_ring_of_more_servers_is_not_faster(nbytes: int, rate: float, n: int) -> None:
    times = [cost("all_reduce", nbytes, Cluster(Physics(), Links(rate), Layout(m, 8))) for m in (n, n + 1)]
    assert times[0] <= times[1]


def test_beyond_its_window_a_connection_slows_down_with_the_round_trip() -> None:
    """10^9 bytes over one connection with a window of 1 MB; below 1 ms of round trip the window does not matter."""

    def rate(trip: float) -> float:
        network = Links(1e9, trip / 2)
        return 1e9 / (cost("exchange", 10**9, ideal(4, network=network, window=1e6)) - trip / 2)

    assert rate(0.5e-3) == pytest.approx(1e9, rel=1e-3)
    assert rate(10e-3) == pytest.approx(1e6 / 10e-3, rel=0.01)
    assert rate(20e-3) == pytest.approx(rate(10e-3) / 2, rel=0.01)


def test_a_ring_with_two_segments_under_way_hides_latency_behind_the_longer_of_them() -> None:
    """4 servers, 6 hops of chunks of S / 4 at 1 GB/s: a short message pays every hop, a long one only its bytes."""
    gloo = {"segments": 2.0, "ring_hop": 2.0, "latency": 1e-3}
    assert cost("all_reduce", 4000, ideal(4, **gloo)) == pytest.approx(6 * (2e-3 + 0.5e-6))
    assert cost("all_reduce", 40 * 10**6, ideal(4, **gloo)) == pytest.approx(6 * 10e-3)
    assert cost("all_reduce", 40 * 10**6, ideal(4, latency=1e-3)) == pytest.approx(6 * 11e-3)


def test_a_window_that_passes_as_one_packet_is_stop_and_wait() -> None:
    """Every window of 1 MB but the last waits until it has left (1 ms) and the answer is back (0.2 ms).

    The last one passes another link, too (1 ms).
    """
    few = {"window": 1e6, "packet": 1e9, "latency": 1e-4}
    assert cost("exchange", 10**7, ideal(2, **few)) == pytest.approx(1e-4 + 10e-3 + 9 * 0.2e-3 + 1e-3)


@pytest.mark.parametrize("one_way", [1e-4, 4e-4, 4.5e-4, 5e-4, 1e-3, 1e-2])
def test_packets_wait_in_a_queue_where_sending_takes_a_round_trip(one_way: float) -> None:
    """Windows of 1 MB (1 ms), ten packets: each waits s u / (2 (1 - u)), where u = 1 ms / cycle; found by bisection.

    So does its acknowledgement, and the last packet of all passes another link.
    """
    sending, packet = 1e-3, 1e-4
    low, high = sending * (1 + 1e-12), 1.0
    for _ in range(100):
        cycle = (low + high) / 2
        u = sending / cycle
        # Nine tenths of them, as a packet does not wait for itself.
        behind = cycle < 2 * one_way + packet + 2 * 0.9 * packet * u / (2 * (1 - u))
        low, high = (cycle, high) if behind else (low, cycle)
    network = Links(latency=one_way)
    found = cost("exchange", 10**9, ideal(4, network=network, window=1e6, packet=1e9, packets=10))
    assert found == pytest.approx(one_way + 1.0 + 999 * (cycle - sending) + packet)


def test_many_senders_share_the_queue_of_a_switch_s_port() -> None:
    """15 flows into one interface have 3 MB in flight together, per round trip of 10 ms; two slow ones never queue."""
    far, limits = Links(latency=5e-3), {"incast": 3e6, "process": 0.4e9}
    alone, crowded = (cost("all_to_all", 16 * 10**7, ideal(16, network=far, **more)) for more in ({}, limits))
    rate = 0.4e9  # of the process
    rounds = 10**7 / (3e6 / 15) - 1
    assert crowded == pytest.approx(5e-3 + 150e6 / rate + rounds * (10e-3 - 3e6 / rate))
    assert crowded > alone
    pair = [
        cost("exchange", 10**7, ideal(16, network=far, **{"process": 0.4e9, **m}), offsets=(1, -1))
        for m in ({}, limits)
    ]
    assert pair[0] == pair[1]


def test_loss_follows_the_response_functions() -> None:
    trip, p = 0.02, 1e-3
    for congestion, expected in (
        ("reno", 1.22 * MSS / (trip * math.sqrt(p))),
        ("cubic", max(1.22 * MSS / (trip * math.sqrt(p)), 1.054 * MSS / (trip**0.25 * p**0.75))),
    ):
        network = Links(1e9, trip / 2, 0.0, p, congestion)
        assert ideal(2, network=network).lossy == pytest.approx(expected)


def test_the_last_packet_of_a_message_passes_two_links() -> None:
    """Of each message: of a short one all of it, of a ring's hop the segment that goes on."""
    assert cost("exchange", 10**4, ideal(2, packet=65536)) == pytest.approx(2e4 / 1e9)
    assert cost("exchange", 10**7, ideal(2, packet=65536)) == pytest.approx((10**7 + 65536) / 1e9)
    assert cost("all_to_all", 4 * 10**4, ideal(4, packet=65536)) == pytest.approx(4e4 / 1e9), "three messages and one"
    far = Links(1e9, 1e-6)
    one, two = (cost("all_reduce", 4 * 10**4, ideal(4, network=far, packet=packet)) for packet in (0, 65536))
    assert two - one == pytest.approx(6 * 1e4 / 1e9), "six hops of a quarter"
    slow = ideal(4, network=Links(1e9, 1e-6), packet=65536, packets=10, window=2e4)
    assert slow.forwarding(10**4) == pytest.approx(2e3 / 1e9), "a tenth of a window"


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("latency", [1e-4, 1e-3, 5e-3])
def test_packets_and_acknowledgements_wait_as_in_an_m_d_1_queue(latency: float, queues: int) -> None:
    """Pollaczek and Khinchine: s u / (2 (1 - u)) in each queue, where u is what the window uses of the line."""
    rate, window, packet = 1e8, 2e5, 2e4
    cycle = ideal(2, latency=latency).cycle(window, rate, packet, 1e9, queues)
    used = window / rate / cycle
    waits = queues * packet / rate * used / (2 * (1 - used))
    assert cycle == pytest.approx(2 * latency + packet / rate + waits)
    alone = ideal(2, latency=latency).cycle(window, rate, packet, 1, queues)
    assert alone == pytest.approx(max(2 * latency + packet / rate, 2e-3))


def test_flows_of_one_server_share_its_interface() -> None:
    assert cost("exchange", 10**6, ideal(4), offsets=(1, -1)) == pytest.approx(2e-3), "two peers, two copies"
    assert cost("exchange", 10**6, ideal(4, 8), offsets=(8,)) == pytest.approx(8e-3), "eight ranks send at once"
    assert cost("exchange", 10**6, ideal(4, 8), offsets=(1,)) == pytest.approx(1e-3), "only one neighbour is away"


def test_parameter_servers_beside_the_workers_send_a_ring_s_bytes() -> None:
    assert cost("push_pull", 10**6, ideal(16)) == pytest.approx(cost("all_reduce", 10**6, ideal(16)))


def test_one_rank_does_not_communicate() -> None:
    assert cost("all_reduce", 10**9, Cluster(Physics(), Links(), Layout(1, 1))) == 0


def test_who_waits_for_many_waits_longer() -> None:
    """Efficiency falls with the servers that wait for each other: all in a ring, two in a pair."""
    line = {"efficiency_fade": 0.5}
    assert cost("all_reduce", 10**8, ideal(8, **line)) == pytest.approx(2 * cost("all_reduce", 10**8, ideal(8)))
    assert cost("all_to_all", 10**8, ideal(8, **line)) == pytest.approx(2 * cost("all_to_all", 10**8, ideal(8)))
    assert cost("exchange", 10**8, ideal(8, **line)) == pytest.approx(cost("exchange", 10**8, ideal(8)))


def test_single_connections_may_have_a_limit() -> None:
    """A ring waits for its one connection, the slowest; of two directions each has its own. It counts headers."""
    network = Links(1e9, flows=(4e8, 2e8))
    assert cost("all_reduce", 10**8, ideal(4, network=network)) == pytest.approx(1.5 * 10**8 / 2e8)
    assert cost("exchange", 10**8, ideal(4, network=network), offsets=(1, -1)) == pytest.approx(2 * 10**8 / 4e8)
    headers = ideal(4, network=network, efficiency_ring=0.9)
    assert cost("all_reduce", 10**8, headers) == pytest.approx(1.5 * 10**8 / 2e8 / 0.9)


def test_streams_carry_what_each_of_them_can() -> None:
    """Four streams have four windows, four times the rate under loss, and all limits of single connections in turn."""

    def taken(nbytes: int, **links: Any) -> float:
        return cost("exchange", nbytes, ideal(2, network=Links(1e9, **links), window=1e6))

    apart = {"latency": 5e-3}
    one, four = (taken(10**8, streams=streams, **apart) for streams in (1, 4))
    assert one == pytest.approx(10**8 / 1e6 * 10e-3, rel=0.02)
    assert four == pytest.approx(10**8 / 4e6 * 10e-3, rel=0.02)
    lossy = [taken(10**8, streams=streams, latency=5e-4, loss=0.01) for streams in (1, 4)]
    assert lossy[0] == pytest.approx(4 * lossy[1], rel=0.02)
    limited = [taken(10**8, streams=streams, flows=(1e8, 2e8, 3e8)) for streams in (1, 2, 3)]
    assert limited == [pytest.approx(10**8 / rate) for rate in (1e8, 3e8, 6e8)]
    assert taken(16 * 1024, streams=4, flows=(1e8,)) == pytest.approx(16 * 1024 / 1e8), "too short to be cut"


def between_sites(sites: int, servers: int, per_server: int = 1, **far: float) -> Cluster:
    """Servers of 1 GB/s without latency, in sites that 0.1 GB/s and a second join, unless said otherwise."""
    links = Links(1e9, sites=sites, far=Links(far.pop("line", 1e8), latency=far.pop("latency", 1.0)))
    return ideal(servers, per_server, links)


@pytest.mark.parametrize(("n", "sites"), [(4, 2), (16, 2), (16, 4)])
def test_what_crosses_between_sites_is_what_servers_there_do_not_have(n: int, sites: int) -> None:
    """m servers of a site send to n - m elsewhere; a ring leaves a site once; a shift by one does, too."""
    nbytes, m = 1000 * n, n // sites
    expected = {
        "all_reduce": 2 * (n - 1) / n * nbytes,
        "all_to_all": m * (n - m) / n * nbytes,
        "all_gather": m * (n - m) * nbytes,
        "exchange": nbytes,
        "reduce": nbytes,
        "push_pull": m * 2 * (n - m) / n * nbytes,
    }
    for kind, value in expected.items():
        assert cost(kind, nbytes, between_sites(sites, n, latency=0.0)) == pytest.approx(1e-8 * value), kind
    far_away = between_sites(sites, n, latency=0.0)
    assert cost("exchange", nbytes, far_away, offsets=(n // 2,)) == pytest.approx(1e-8 * m * nbytes)


def halves(number: int, rank: int, size: int) -> int:
    """Whom a rank meets in the decentralized algorithms' exchange of this number."""
    [other] = shift_one(number, rank, size)
    return other


def cube(number: int, rank: int, size: int) -> int:
    """Along one edge of a hypercube after the other."""
    return rank ^ 2 ** (number % int(math.log2(size)))


@pytest.mark.parametrize("partner", [halves, cube])
@pytest.mark.parametrize(("n", "g", "sites"), [(4, 1, 2), (8, 1, 4), (4, 2, 2), (4, 4, 4), (8, 2, 2)])
def test_what_pairs_send_is_what_all_of_a_place_send_elsewhere(
    partner: Callable[[int, int, int], int], n: int, g: int, sites: int
) -> None:
    """Counted over all ranks; a line between sites has a tenth of a server's rate."""
    size, nbytes = n * g, 10**6
    for number in range(size // 2):
        pairs = [(rank, partner(number, rank, size)) for rank in range(size)]
        lines = []
        for crowd, rate in ((g, 1e9), (size // sites, 1e8)):
            leaving = Counter(a // crowd for a, b in pairs if a // crowd != b // crowd)
            lines.append(max(leaving.values(), default=0) * nbytes / rate)
        one, several = ideal(n, g, Links(1e9)), between_sites(sites, n, g, latency=0.0)
        offsets = (partner(number, 0, size),)
        assert cost("pairs", nbytes, one, offsets=offsets) == pytest.approx(lines[0])
        assert cost("pairs", nbytes, several, offsets=offsets) == pytest.approx(max(lines))


@pytest.mark.parametrize(("n", "sites"), [(4, 2), (16, 2), (16, 4)])
def test_only_hops_between_sites_take_their_latency(n: int, sites: int) -> None:
    late, soon = between_sites(sites, n, line=1e9), between_sites(sites, n, line=1e9, latency=0.0)
    slope = {kind: cost(kind, 1000, late) - cost(kind, 1000, soon) for kind in BETWEEN}
    assert slope["all_reduce"] == pytest.approx(2 * (n - 1) * sites / n), "a round crosses each border once"
    assert slope["all_to_all"] == pytest.approx(1)
    assert slope["exchange"] == pytest.approx(1)
    assert slope["reduce"] == pytest.approx(math.log2(sites))


@given(kind=st.sampled_from(sorted(BETWEEN)), nbytes=SIZES, n=st.integers(2, 32), rate=st.floats(1e6, 1e9),
       latency=st.floats(0, 0.1), loss=st.floats(0, 0.01))  # fmt: skip
def test_a_server_a_site_is_a_cluster_over_the_sites_lines(
    kind: str, nbytes: int, n: int, rate: float, latency: float, loss: float
) -> None:
    far = Links(rate, latency, loss=loss)
    apart = Cluster(Physics(), Links(1e10, sites=n, far=far), Layout(n, 4))
    assert cost(kind, nbytes, apart) == pytest.approx(cost(kind, nbytes, Cluster(Physics(), far, Layout(n, 4))))


@given(kind=st.sampled_from(sorted(BETWEEN)), nbytes=SIZES, m=st.integers(1, 8), sites=st.integers(2, 4),
       rate=st.floats(1e6, 1e9), latency=st.floats(0, 0.1))  # fmt: skip
def test_sites_are_never_faster_than_one_place(
    kind: str, nbytes: int, m: int, sites: int, rate: float, latency: float
) -> None:
    near = Links(1e9)
    apart = replace(near, sites=sites, far=Links(min(rate, 1e9), latency))
    layout = Layout(m * sites, 2)
    one, several = (cost(kind, nbytes, Cluster(Physics(), links, layout)) for links in (near, apart))
    assert several >= one * (1 - 1e-9)


def test_one_server_that_is_far_is_far_for_its_neighbours_alone() -> None:
    """A ring passes it once a round; whoever talks to it waits for its link and for the other one's."""
    asked = ["mode=simulate", "cluster.servers=4", "network.bandwidth=8gbit", "network.latency=1ms"]
    cluster = cluster_of(resolved(*asked, "cluster.server.2.latency=5ms"))
    assert cluster.network.latency == pytest.approx(3e-3)
    assert sorted(cluster.network.ring) == [pytest.approx((1e-3, 0.5)), pytest.approx((3e-3, 0.5))]
    assert cluster_of(resolved(*asked)).network.ring == ()
    one = replace(ideal(4), network=Links(1e9, 3.0, ring=((1.0, 0.5), (3.0, 0.5))))
    assert cost("all_reduce", 1000, one) == pytest.approx(6 * 2.0)
    assert cost("all_to_all", 1000, one) == pytest.approx(3.0)


def test_near_hops_do_not_make_up_for_a_far_one() -> None:
    """Chunks of 4 s in two segments: they hide a latency of 1 s, and not 3 s; the mean, 2 s, they would hide."""
    one = replace(ideal(4, segments=2.0), network=Links(1e9, 3.0, ring=((1.0, 0.5), (3.0, 0.5))))
    assert cost("all_reduce", 16 * 10**9, one) == pytest.approx(6 * (4 + 5) / 2)
