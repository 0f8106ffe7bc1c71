"""What lost packets cost, against connections that are played packet by packet, and numbers that are drawn."""

from __future__ import annotations

import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_bench.configuration.physics import Physics
from bagua_bench.simulate.cluster import MSS, Cluster, Layout, Links
from bagua_bench.simulate.loss import most, with_loss

TRIP = 0.02


def cluster(loss: float, congestion: str) -> Cluster:
    return Cluster(Physics(latency=0.0), Links(1e9, TRIP / 2, loss=loss, congestion=congestion), Layout(2, 1))


def played(packets: int, most_under_way: int, loss: float, falls_to: float, grows_by: float, seed: int) -> float:
    """Seconds of a connection whose window falls after a loss, which takes a round trip to repeat, and grows again."""
    draw, window, sent, trips = random.Random(seed), float(most_under_way), 0, 0
    while sent < packets:
        now = int(window)
        sent, trips = sent + now, trips + 1
        if any(draw.random() < loss for _ in range(now)):
            window, trips = max(2.0, window * falls_to), trips + 1
        else:
            window = min(window + grows_by, most_under_way)
    return trips * TRIP


@pytest.mark.parametrize("window", [12, 18, 100])
@pytest.mark.parametrize("loss", [0.0005, 0.001, 0.005, 0.02])
@pytest.mark.parametrize(("congestion", "falls_to", "grows_by"), [("reno", 0.5, 1.0), ("cubic", 0.7, 0.53)])
def test_it_is_what_a_connection_takes_whose_window_falls_and_grows(
    congestion: str, falls_to: float, grows_by: float, loss: float, window: int
) -> None:
    packets = 200_000
    took = fmean(played(packets, window, loss, falls_to, grows_by, seed) for seed in range(2))
    without = packets / window * TRIP
    found = with_loss(without, packets * MSS, 1, 1, cluster(loss, congestion))
    assert found == pytest.approx(took, rel=0.12)
    assert found > without


@pytest.mark.parametrize("mean", [0.01, 0.5, 5.0, 30.0, 49.0, 51.0, 200.0])
@pytest.mark.parametrize("flows", [1, 2, 12, 200])
def test_the_slowest_has_the_most_of_as_many_drawn_numbers(mean: float, flows: int) -> None:
    drawn = np.random.default_rng(0).poisson(mean, (20_000, flows)).max(axis=1)
    assert most(mean, flows) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 20_000**0.5 + 1e-3 * mean)


@pytest.mark.parametrize("mean", [1e-6, 0.1, 1.0, 40.0])
def test_many_connections_are_counted_as_quickly_as_few(mean: float) -> None:
    assert mean < most(mean, 10**6) < 10 * mean + 12


@given(
    seconds=st.floats(1e-6, 10.0),
    nbytes=st.integers(1, 10**9),
    flows=st.integers(1, 5000),
    loss=st.floats(1e-6, 0.05),
    congestion=st.sampled_from(["reno", "cubic", "bbr"]),
)
def test_it_takes_longer_with_more_loss_more_connections_more_bytes_and_a_slower_line(
    seconds: float, nbytes: int, flows: int, loss: float, congestion: str
) -> None:
    def at(seconds: float = seconds, nbytes: int = nbytes, flows: int = flows, loss: float = loss) -> float:
        return with_loss(seconds, nbytes, flows, 1, cluster(loss, congestion)) * (1 + 1e-6)

    now = at() / (1 + 1e-6)
    assert now >= seconds
    assert at(seconds=1.5 * seconds) >= now
    assert at(nbytes=2 * nbytes) >= now
    assert at(flows=flows + 1) >= now
    assert at(loss=1.5 * loss) >= now


def test_streams_share_the_losses_of_a_connection() -> None:
    one, four = (with_loss(1e-9, 10**8, 2, streams, cluster(0.01, "reno")) for streams in (1, 4))
    assert one == pytest.approx(4 * four)


def test_bbr_keeps_the_line() -> None:
    assert with_loss(1.0, 10**8, 2, 1, cluster(0.01, "bbr")) == 1.0
    assert with_loss(0.1, 10**8, 2, 1, cluster(0.01, "bbr")) == pytest.approx(10**8 / 0.99e9)


def test_nothing_lost_costs_nothing() -> None:
    assert with_loss(1.0, 10**8, 12, 1, cluster(0.0, "cubic")) == 1.0
    assert with_loss(0.0, 0, 12, 1, cluster(0.01, "cubic")) == 0.0
