"""What is asked of a network, from texts to links, queues, commands and judgements."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bagua_bench.configuration import network_settings
from bagua_bench.configuration.identity import identity
from bagua_bench.configuration.network_shape import Link, Shape, is_shaped, shape_of
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.machine.scale import scale_model
from bagua_bench.network import probe, survey, traffic
from bagua_bench.network.netem import qdiscs
from bagua_bench.network.survey import pairs
from bagua_bench.network.topology import THIS_MACHINE
from bagua_bench.results.result import Interface, RankResult
from tests.catalogue import resolved


def test_texts_become_plain_values() -> None:
    cell = resolved("network=wan", "network.loss=0.5%", "network.tcp_window=1MiB")
    assert cell.to_json()["network"] == {
        "name": "wan",
        "bandwidth": 1e8,
        "latency": 0.02,
        "jitter": 0.001,
        "loss": 0.005,
        "congestion": "cubic",
        "tcp_window": 2**20,
        "flow_rates": [],
        "backend": "auto",
        "software_delay": False,
        "sites": 1,
        "wan": {"bandwidth": None, "latency": 0.0, "jitter": 0.0, "loss": 0.0},
    }


def test_a_network_is_shaped_as_soon_as_something_is_asked_of_it() -> None:
    assert not is_shaped(resolved())
    for asked in ("network.latency=1ms", "network=1gbit", "network.backend=link", "cluster.server.1.loss=1%"):
        assert is_shaped(resolved(asked))


def test_delay_by_software_is_only_simulated() -> None:
    asked = ("network.latency=1ms", "network.bandwidth=1gbit", "network.software_delay=true", "cluster.servers=2")
    validate(resolved("mode=simulate", "task=vgg16", *asked))
    with pytest.raises(ConfigError, match=r"network\.software_delay=true: only simulated, and mode=emulate; allowed"):
        validate(resolved("mode=emulate", "task=vgg16", *asked))


def test_a_simulated_network_needs_none() -> None:
    assert not is_shaped(resolved("mode=simulate", "network=1gbit"))


def test_single_servers_have_their_own_link() -> None:
    shape = shape_of(
        resolved("cluster=4x2", "network=1gbit", "network.latency=1ms", "cluster.server.2.bandwidth=1mbit")
    )
    assert [link.bandwidth for link in shape.links] == [1e9, 1e9, 1e6, 1e9]
    assert shape.rate(0, 1) == 1e9
    assert shape.rate(2, 1) == shape.rate(1, 2) == 1e6
    assert shape.rtt(0, 2) == pytest.approx(2e-3), "one way in each direction"
    assert shape.connections == 2 * 2 * 3


SITES = ["network.bandwidth=1gbit", "network.latency=1ms", "network.sites=2", "network.wan.bandwidth=100mbit",
         "network.wan.latency=20ms", "network.wan.jitter=2ms"]  # fmt: skip


def test_servers_of_two_sites_talk_over_their_lines() -> None:
    cell = resolved("cluster=4x2", *SITES)
    validate(cell)
    shape = shape_of(cell)
    assert [shape.site(server) for server in range(4)] == [0, 0, 1, 1]
    assert (shape.rate(0, 1), shape.rtt(0, 1), shape.jitter(0, 1)) == (1e9, pytest.approx(2e-3), 0)
    assert (shape.rate(1, 2), shape.rtt(1, 2), shape.jitter(1, 2)) == (1e8, pytest.approx(42e-3), pytest.approx(4e-3))
    crossing = 2 * 2 * 2 * 2  # two ranks on each of two servers with two on each of two others
    assert shape.wan_queue() == shape.wan.queue(crossing * 4 * 2**20)


def test_a_cell_of_one_site_is_what_it_was_before_there_were_several() -> None:
    config = resolved("network=1gbit").to_json()
    before = {key: value for key, value in config["network"].items() if key not in ("sites", "wan")}
    assert identity({**config, "network": before}) == identity(config)
    assert resolved("network=1gbit").id == resolved("network=1gbit", "network.sites=1").id
    assert resolved(*SITES).id != resolved(*SITES, "network.wan.latency=21ms").id


def test_a_scale_model_s_sites_are_as_far_in_its_own_time() -> None:
    asked = resolved("mode=emulate", "task=bert_large", "cluster=4x1", *SITES, "compute.shrink=50", "compute.haste=2")
    wan = scale_model(asked).network.wan
    assert (wan.bandwidth, wan.latency, wan.jitter) == (1e8 * 2 / 50, 10e-3, 1e-3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["network.sites=3"], "network.sites=3: cluster.servers=4 do not fill them equally; allowed: 1, 2, 4"),
        (["network.sites=0"], "network.sites=0: cluster.servers=4 do not fill them equally; allowed: 1, 2, 4"),
        (["network.sites=2", "network.wan.bandwidth=1kbit"], "network.wan.bandwidth=1kbit: must be at least 8kbit"),
        (["network.sites=2", "network.wan.jitter=1ms"], "network.wan.jitter=1ms: needs network.wan.bandwidth"),
        (["network.wan.latency=1ms"], "network.wan.latency=1ms: network.sites=1 has no line to another"),
        (["network.sites=2", "network.wan.latency=1"], "network.wan.latency=1"),
    ],
)
def test_sites_that_cannot_be(asked: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(resolved("cluster=4x1", *asked))
    assert str(refused.value).startswith(said)


def test_queues_hold_what_the_specification_asks_for() -> None:
    assert Link(1e9, 0.1, 0, 0).queue(0) == pytest.approx(12_500 * 1500)
    assert Link(1e10, 5e-3, 0, 0).queue(0) == pytest.approx(6_250 * 1500)
    assert Link(1e8, 0, 0, 0).queue(0) == 1000 * 1500
    assert Link(1e8, 0, 0, 0).queue(10**6) == 1000 * 1500 + 10**6


@pytest.mark.parametrize(
    ("link", "sent", "received"),
    [
        (Link(1e8, 5e-3, 0, 0), "rate 100mbit", "delay 5ms rate 100mbit"),
        (Link(None, 5e-4, 0, 0), "", "delay 500us"),
        (Link(1e9, 0, 0, 0), "rate 1gbit", "rate 1gbit"),
        (Link(1e9, 0.02, 1e-3, 1e-3), "rate 1gbit", "delay 20ms 1ms distribution normal loss 0.1% rate 1gbit"),
        (Link(None, 0, 0, 0), "", ""),
    ],
)
def test_netem_is_told_what_an_engineer_would_type(link: Link, sent: str, received: str) -> None:
    assert qdiscs(link) == (sent, received)


@pytest.mark.parametrize(
    ("asked", "segments"),
    [
        ([], 45),
        (["network.tcp_window=40KiB"], 45),
        (["network.latency=1ms"], 45),
        (["network.latency=1ms", "network.tcp_window=160KiB"], 6),
        (["network.jitter=1ms", "network.tcp_window=40KiB"], 2),
        (["network.loss=1%", "network.latency=1ms"], 1),
        (["network.loss=1%", "network.latency=1ms", "network.backend=link"], 45),
        (["network.loss=1%", "network.backend=link", "network.latency=1ms", "network.tcp_window=160KiB"], 6),
    ],
)
def test_packets_are_small_where_netem_would_lose_them_whole_or_a_window_is_few(
    asked: list[str], segments: int
) -> None:
    assert shape_of(resolved("network=1gbit", *asked)).segments == segments


@pytest.mark.parametrize("servers", range(2, 10))
def test_every_server_is_probed_in_both_directions(servers: int) -> None:
    chosen = pairs(servers)
    assert {a for a, _ in chosen} == {b for _, b in chosen} == set(range(servers))
    if servers <= 4:
        assert {frozenset(pair) for pair in chosen} == {frozenset((a, b)) for a in range(servers) for b in range(a)}


@pytest.mark.parametrize(
    ("stolen", "counts"),
    [
        ([0.0], 1),
        ([0.01], 1),
        ([0.5, 0.0], 2),
        ([0.3, 0.2, 0.1, 0.4, 0.2], 3),  # always something: the least disturbed of five
    ],
)
def test_a_measurement_that_the_host_disturbed_is_repeated(
    monkeypatch: pytest.MonkeyPatch, stolen: list[float], counts: int
) -> None:
    clock, withheld, measured, opened = [0.0], [0.0], [0], [0]

    @contextmanager
    def connection(*_: Any) -> Iterator[tuple[socket.socket, socket.socket]]:
        opened[0] += 1
        near, far = socket.socketpair()
        with near, far:
            yield near, far

    def receive(_: socket.socket, seconds: float) -> float:
        if seconds < probe._MEASURED:  # slow start
            return 0.0
        clock[0] += 1.0
        withheld[0] += stolen[measured[0]] * 2
        measured[0] += 1
        return 1e6 * measured[0]

    monkeypatch.setattr(probe, "connection", connection)
    monkeypatch.setattr(probe, "_receive", receive)
    monkeypatch.setattr(probe, "_stolen_seconds", lambda: withheld[0])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert probe.goodput(THIS_MACHINE, THIS_MACHINE, 1e-3) == 1e6 * counts
    assert measured[0] == len(stolen)
    assert opened[0] == 1, "connections take the limits of network.flow_rates in turns"


def shape(loss: float = 0.0, window: int = 4 * 2**20, congestion: str = "cubic") -> Shape:
    link = Link(1e8, 5e-3, 0.0, loss)
    return Shape((link, link), "link", congestion, window, 1, 0)


@pytest.mark.parametrize(
    ("rate", "rtt", "of", "expected"),
    [
        (100e6, 10.4e-3, shape(), []),
        (92e6, 10.9e-3, shape(), []),
        (88e6, 10e-3, shape(), ["after: servers 0 and 1: 88mbit instead of 100mbit"]),
        (111e6, 10e-3, shape(), ["after: servers 0 and 1: 111mbit instead of 100mbit"]),
        (100e6, 11.1e-3, shape(), ["after: servers 0 and 1: round trip of 11.10ms instead of 10.00ms"]),
        (20e6, 10e-3, shape(loss=0.01), []),
        (20e6, 10e-3, shape(window=65536), []),
        (120e6, 10e-3, shape(loss=0.01), ["after: servers 0 and 1: 120mbit instead of 100mbit"]),
    ],
)
def test_a_network_that_is_not_what_was_asked_for_is_flagged(
    rate: float, rtt: float, of: Shape, expected: list[str]
) -> None:
    found = [{"from": 0, "to": 1, "rtt": rtt, "goodput": rate * 1448 / 1514}]
    assert list(survey.flags(of, 14, "after", found)) == expected


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (["network.latency=1ms"], ""),
        (["network.latency=100ms"], "its TCP window"),
        (["network.latency=100ms", "network.tcp_window=64MiB"], ""),
        (["network.loss=1%"], "loss"),
        (["network.flow_rates=[10mbit]"], "the limits of single connections"),
    ],
)
def test_what_holds_one_connection_back(asked: list[str], limit: str) -> None:
    assert shape_of(resolved("network=1gbit", *asked)).limit(0, 1) == limit


def test_a_disturbance_within_a_run_is_flagged() -> None:
    assert survey.late((100, 3), (1100, 3)) == 0
    assert survey.late((100, 3), (1100, 63)) == pytest.approx(0.06)
    assert survey.late(None, None) is None
    assert list(survey.flags_within(0, shape(), 0.04)) == list(survey.flags_within(7, shape(loss=0.01), None)) == []
    assert list(survey.flags_within(7, shape(), 0.06)) == [
        "7 packets were dropped by a full queue",
        "6% of the packets came over 1 ms late: the emulator had too little processor time",
    ]


def test_crowded_cores_are_flagged() -> None:
    assert list(survey.crowded(None, 1.0, shape())) == list(survey.crowded(0.3, 1.0, shape())) == []
    said = "the cores were 80% busy, so that steps took longer for it"
    assert list(survey.crowded(0.8, 1.0, shape())) == [f"{said}; compute.haste=0.5 has it count for half as much"]
    assert list(survey.crowded(0.8, 1.0, shape(loss=0.01))) == list(survey.crowded(0.8, 1.0, shape()))
    assert list(survey.crowded(0.8, 1.0, shape(loss=0.01, congestion="bbr"))) == [said], "it goes by the clock"
    assert list(survey.crowded(0.8, 1.0, shape(loss=1e-6))) == [said], "as does CUBIC with few losses and 20 ms"
    assert list(survey.crowded(0.8, 0.1, shape())) == [said], "there is a least pace"


def test_a_slower_pace_has_tcp_wait_longer_too() -> None:
    """The time-out of TCP is Linux's, and as much longer as everything else."""
    asked = ("mode=emulate", "network=1gbit", "network.loss=0.1%", "network.latency=1ms")
    assert shape_of(scale_model(resolved(*asked))).timeout == 0.2
    assert shape_of(scale_model(resolved(*asked, "compute.haste=0.25"))).timeout == pytest.approx(0.8)
    quick = resolved("mode=emulate", "network=1gbit", "compute.haste=8")
    assert shape_of(scale_model(quick)).timeout == 0.2, "what two busy cores take is no time-out"


@pytest.mark.parametrize(
    ("haste", "asked", "allowed"),
    [
        ("0.25", ["network.loss=0.1%", "network.latency=1ms"], True),
        ("0.25", ["network.loss=0.1%", "network.latency=20ms"], False),  # a round trip of 160 ms at that pace
        ("0.5", ["network.loss=0.1%", "network.latency=20ms"], True),
        ("0.25", ["network.loss=0.1%", "network.latency=20ms", "network.congestion=reno"], True),
        ("0.25", ["network.loss=0.1%", "network.congestion=bbr"], False),
        ("0.25", ["network.congestion=bbr"], True),
        ("2", ["network.loss=0.1%"], False),
    ],
)
def test_a_pace_at_which_loss_would_count_for_more_or_less_is_refused(
    haste: str, asked: list[str], allowed: bool
) -> None:
    cell = resolved("mode=emulate", "network=1gbit", f"compute.haste={haste}", *asked)
    found = [line for line in network_settings.problems(cell) if line.startswith("compute.haste")]
    assert (not found) is allowed, found
    assert all("1 or less" in line or "1, or any with network.congestion=reno" in line for line in found)


def test_the_least_pace_is_named_at_which_cubic_is_as_fast_as_reno() -> None:
    asked = ("mode=emulate", "network=1gbit", "network.loss=0.1%", "network.latency=20ms")
    [line] = network_settings.problems(resolved(*asked, "compute.haste=0.25"))
    least = re.search(r"allowed: ([0-9.]+) to 1,", line)
    assert least and list(network_settings.problems(resolved(*asked, f"compute.haste={least[1]}"))) == []
    assert list(network_settings.problems(resolved(*asked, f"compute.haste={float(least[1]) - 0.002}")))


def rank(flat: float, inter: float, on_wire: int) -> RankResult:
    return RankResult(
        seconds=({}, {}),
        losses=(),
        sent={"flat": flat, "intra": 9e9, "inter": inter},
        metrics={},
        peak_memory=None,
        interface=Interface(bytes=on_wire, retransmits=1),
    )


def test_interfaces_and_communicators_are_compared() -> None:
    fits = traffic.compare([rank(2e6, 0, 2_080_000), rank(2e6, 0, 2_000_000)], 1)
    assert fits == {"interface": [1_040_000, 1_000_000], "counted": [1e6, 1e6], "bound": False, "retransmits": 2}
    assert list(traffic.flags(fits)) == []
    for wrong in (1_900_000, 2_400_000):
        found = traffic.compare([rank(2e6, 0, 2_080_000), rank(2e6, 0, wrong)], 1)
        assert len(list(traffic.flags(found))) == 1
    leaders = traffic.compare([rank(0, 2e6, 2_080_000), rank(0, 0, 0), rank(0, 2e6, 2_080_000), rank(0, 0, 0)], 2)
    assert (leaders["counted"], leaders["bound"]) == ([1e6, 1e6], False)
    for sent, fits_too in ((1_900_000, True), (5_000_000, False)):
        everyone = traffic.compare([rank(2e6, 0, sent), rank(2e6, 0, 0)] * 2, 2)
        assert (everyone["counted"], everyone["bound"]) == ([2e6, 2e6], True)
        assert (list(traffic.flags(everyone)) == []) == fits_too
