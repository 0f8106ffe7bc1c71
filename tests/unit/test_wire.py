"""The rules of the link emulator, on a clock of the test's own."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bagua_bench.configuration.network_shape import Link
from tests.unit.emulator import Flows, Line, Port, overhead, wire_bytes

MBIT = 1e6
OVERHEAD = overhead()


def port(bandwidth: float | None = 100 * MBIT, latency: float = 5e-3, jitter: float = 0, loss: float = 0) -> Port:
    return Port(Link(bandwidth, latency, jitter, loss), 10**6, "0")


def received(receiver: Port, begin: float, end: float, nbytes: int) -> float | None:
    """When the last of a packet has arrived."""
    times = receiver.arrive(begin, end, nbytes)
    return times and times[1]


@pytest.mark.parametrize("payload", [0, 1, 1447, 1448, 1449, 5 * 1448, 5 * 1448 + 1, 64_000])
def test_headers_of_all_segments_are_on_the_wire(payload: int) -> None:
    segments, rest = 1, payload - 1448
    while rest > 0:
        segments, rest = segments + 1, rest - 1448
    assert wire_bytes(52 + payload) == payload + 52 * segments


def test_a_line_carries_its_rate() -> None:
    line = Line(100 * MBIT, 10**6)
    ends = [line.send(1.0, 1500) for _ in range(100)]
    assert ends[0] == (1.0, pytest.approx(1.0 + 1500 * 8 / 1e8))
    assert ends[-1] is not None
    assert ends[-1][1] == pytest.approx(1.0 + 100 * 1500 * 8 / 1e8)
    assert line.send(5.0, 1500) == (5.0, pytest.approx(5.0 + 1500 * 8 / 1e8)), "idle time is not saved up"


def test_a_full_queue_drops_and_recovers() -> None:
    line = Line(8000.0, 3000)  # 1000 bytes/s
    assert [line.send(0.0, 1000) is not None for _ in range(5)] == [True, True, True, False, False]
    assert line.send(1.5, 1000) == (3.0, 4.0), "what was dropped takes no time"


def test_without_a_bandwidth_nothing_waits_and_nothing_is_dropped() -> None:
    line = Line(None, 3000)
    assert line.send(1.0, 10**6) == line.send(1.0, 10**6) == (1.0, 1.0)
    assert line.send(0.9, 1500) == (1.0, 1.0), "a packet that was due before is not dropped for being late"


def test_equal_links_take_the_time_of_one_and_the_slower_one_counts() -> None:
    for receiver, rate in ((port(), 100 * MBIT), (port(50 * MBIT), 50 * MBIT)):
        sender = port(latency=1.0)
        times = sender.leave(0.0, 15_000)
        assert times is not None
        assert received(receiver, *times, 15_000) == pytest.approx(15_000 * 8 / rate + 5e-3 - OVERHEAD)


@pytest.mark.parametrize(("between", "slowest"), [(100 * MBIT, 100 * MBIT), (20 * MBIT, 20 * MBIT), (None, 100 * MBIT)])
def test_over_two_lines_more_a_packet_takes_the_time_of_the_slowest(between: float | None, slowest: float) -> None:
    """Of the server, of its site, of the other site, and of the other server: segments follow each other over all."""
    sender, receiver, here, there = port(), port(), port(between, latency=1.0), port(between, latency=20e-3)
    times = sender.leave(0.0, 15_000)
    assert times is not None
    crossed = here.leave(times[0], 15_000, times[1])
    assert crossed is not None
    landed = there.arrive(*crossed, 15_000)
    assert landed is not None
    assert landed[1] - landed[0] == pytest.approx(15_000 * 8 / slowest)
    assert received(receiver, *landed, 15_000) == pytest.approx(15_000 * 8 / slowest + 25e-3 - 2 * OVERHEAD)


def test_the_receiver_is_shared_by_all_senders() -> None:
    receiver, senders = port(), [port(), port()]
    arrived = []
    for _ in range(50):
        for sender in senders:
            times = sender.leave(0.0, 1500)
            assert times is not None
            arrived.append(received(receiver, *times, 1500))
    assert arrived[-1] == pytest.approx(100 * 1500 * 8 / 1e8 + 5e-3 - OVERHEAD)


def test_connections_with_much_data_get_the_rates_in_turns() -> None:
    flows = Flows([100 * MBIT, 20 * MBIT], 10**7)
    for _ in range(10):
        assert flows.leave(1.0, b"control", 100) == 1.0
    last = {}
    for _ in range(1000):
        for name in (b"first", b"second", b"third"):
            last[name] = flows.leave(1.0, name, 1500)
    sent = 1500 * 1000 - 64 * 1024
    for name, rate in ((b"first", 100 * MBIT), (b"second", 20 * MBIT), (b"third", 100 * MBIT)):
        assert last[name] == pytest.approx(1.0 + sent * 8 / rate, rel=0.01)
    assert flows.leave(1.0, b"control", 100) == 1.0
    assert Flows([], 10**6).leave(1.0, b"", 1500) == 1.0


def test_single_connections_may_be_late() -> None:
    flows = Flows([], 10**7, [0.02, 0.0])
    assert [flows.leave(1.0, b"control", 100) for _ in range(3)] == [1.0] * 3
    last = {name: [flows.leave(1.0, name, 70_000) for _ in range(2)] for name in (b"first", b"second", b"third")}
    assert last == {b"first": [1.02, 1.02], b"second": [1.0, 1.0], b"third": [1.02, 1.02]}


def test_a_line_may_swing() -> None:
    """Every other 0.2 s it has a quarter of its rate, and room for as many bytes."""
    line = Line(100 * MBIT, 30_000, (0.2, 0.25))
    assert line.send(10.1, 12_500) == (10.1, pytest.approx(10.101))
    assert line.send(10.3, 12_500) == (10.3, pytest.approx(10.304))
    assert line.send(10.3, 12_500) == (pytest.approx(10.304), pytest.approx(10.308))
    assert line.send(10.3, 12_500) is None
    assert line.send(10.5, 12_500) == (10.5, pytest.approx(10.501))


def test_loss_is_the_fraction_asked_for_and_the_same_every_time() -> None:
    def lost(packets: int, segments: int) -> list[list[tuple[int, int]]]:
        receiver = port(None, loss=0.1)
        runs = [receiver.survivors(segments) for _ in range(packets)]
        kept = sum(last - first for one in runs for first, last in one)
        assert receiver.lost == packets * segments - kept
        assert 850 < receiver.lost < 1150, "five standard deviations"
        return runs

    assert all(one in ([], [(0, 1)]) for one in lost(10_000, 1))
    for one in lost(250, 40):
        ends = [0, *(k for run in one for k in run), 40]
        assert ends == sorted(ends)
        assert all(last > first for first, last in one)
        assert all(b > a for (_, a), (b, _) in pairwise(one)), "at least one is lost between two runs"
    assert lost(250, 40) == lost(250, 40)
    assert port(None).survivors(40) == [(0, 40)]


def test_jitter_spreads_without_overtaking() -> None:
    receiver = port(latency=20e-3, jitter=2e-3)
    arrivals = [received(receiver, k * 0.1, k * 0.1, 1) for k in range(2000)]
    delays = [when - k * 0.1 for k, when in enumerate(arrivals) if when is not None]
    mean = sum(delays) / len(delays)
    assert mean == pytest.approx(20e-3, abs=0.3e-3)
    assert (sum((d - mean) ** 2 for d in delays) / len(delays)) ** 0.5 == pytest.approx(2e-3, rel=0.1)
    dense = port(latency=20e-3, jitter=2e-3)
    order = [received(dense, k * 1e-5, k * 1e-5, 1) for k in range(2000)]
    assert order == sorted(order, key=lambda when: when or 0)
