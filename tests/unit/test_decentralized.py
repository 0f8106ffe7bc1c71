"""Decentralised SGD against the published pairing table and the update written out."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.decentralized import Decentralized
from algorithms.topology import shift_one
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tasks.quadratic import Quadratic
from tests.catalogue import constructor
from tests.ranks import run

PEERS = {  # size: peers of ranks 0, 1, ... in exchanges 0, 1, ...; even ones are the published table
    1: [[0]],  # who has no peer is its own
    2: [[1, 0]],
    3: [[2, 1, 0], [1, 0, 2]],
    4: [[2, 3, 0, 1], [3, 2, 1, 0]],
    5: [[3, 1, 4, 0, 2], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1], [3, 2, 1, 0, 4]],
    8: [[4, 5, 6, 7, 0, 1, 2, 3], [5, 6, 7, 4, 3, 0, 1, 2], [6, 7, 4, 5, 2, 3, 0, 1], [7, 4, 5, 6, 1, 2, 3, 0]],
}
WORLDS = [("threads", 2), ("threads", 4), ("gloo", 2), ("gloo", 3), ("gloo", 4)]
LR = 0.1


@pytest.mark.parametrize("size", PEERS)
def test_pairing_table(size: int) -> None:
    for exchange in range(2 * size):
        expected = PEERS[size][exchange % len(PEERS[size])]
        found = [shift_one(exchange, rank, size) for rank in range(size)]
        assert found == [[peer] if peer != rank else [] for rank, peer in enumerate(expected)]


@pytest.mark.parametrize("size", range(2, 66, 2))
def test_pairing_is_symmetric_and_meets_all_of_the_other_half(size: int) -> None:
    for rank in range(size):
        peers = [shift_one(exchange, rank, size)[0] for exchange in range(size // 2)]
        assert [shift_one(k, peer, size)[0] for k, peer in enumerate(peers)] == [rank] * (size // 2)
        assert sorted(peers) == list(range(size // 2, size) if rank < size // 2 else range(size // 2))


@pytest.mark.parametrize(("size", "norm"), [(2, 0), (4, 0), (6, 0.25), (8, 0.353553), (16, 0.574523)])
def test_consensus_rate_of_one_period(size: int, norm: float) -> None:
    product = np.eye(size)
    for exchange in range(size // 2):
        pairs = np.eye(size)[[shift_one(exchange, rank, size)[0] for rank in range(size)]]
        product = (np.eye(size) + pairs) / 2 @ product
    assert np.linalg.norm(product - 1 / size, 2) == pytest.approx(norm, abs=1e-6)


@pytest.mark.parametrize("size", range(1, 33, 2))
def test_of_an_odd_number_all_but_rank_0_have_no_peer_in_turn(size: int) -> None:
    without = []
    for exchange in range(max(size - 1, 1)):
        peers = [shift_one(exchange, rank, size) for rank in range(size)]
        without += [rank for rank in range(size) if not peers[rank]]
        assert all(peers[peer] == [rank] and peer != rank for rank in range(size) for peer in peers[rank])
        assert peers == [shift_one(exchange + max(size - 1, 1), rank, size) for rank in range(size)]
    assert without == (list(range(1, size)) or [0])


@pytest.mark.parametrize("size", range(1, 33))
def test_every_number_mixes(size: int) -> None:
    """The models come closer to their mean by more than a tenth in size exchanges, and to any degree in many."""
    product, distances = np.eye(size), []
    for exchange in range(40 * size):
        pairs = np.eye(size)[[[*shift_one(exchange, rank, size), rank][0] for rank in range(size)]]
        product = (np.eye(size) + pairs) / 2 @ product
        if exchange % size == size - 1:
            distances.append(np.linalg.norm(product - 1 / size, 2))
    np.testing.assert_allclose(product.sum(0), 1, rtol=1e-12)
    assert distances[0] < 0.9 and distances[-1] < 1e-9


def train(comm: CountedComm, steps: int, lr: float, spread: bool, options: dict[str, Any]) -> Tensor:
    """The weights after each step, (steps, 32), float64. `spread`: ranks begin at different points, in front."""
    task = Quadratic(dtype="float64", lr=lr)
    model = task.model()
    seen = []
    with Engine(model, task.optimizer(model), Decentralized(**options), comm) as engine:
        if spread:
            engine.buckets[0].weight.add_(torch.arange(32).add_(comm.rank).sin())
            seen.append(model().detach().clone())
        for batch in islice(task.batches(comm.rank, comm.size, seed=0), steps):
            task.loss(model, batch).backward()
            engine.step()
            seen.append(model().detach().clone())
    return torch.stack(seen)


def by_hand(size: int, steps: int, peers: str, interval: int, per_server: int = 1) -> np.ndarray:
    """x_i <- mean over servers of (mean inside the server), then - lr g_i(old x_i); (steps, size, 32)."""
    problems = [tuple(t.numpy() for t in Quadratic(dtype="float64").problem(rank, 0)) for rank in range(size)]
    x, seen = np.zeros((size, 32)), []
    servers = size // per_server
    for step in range(steps):
        gradients = np.stack([h @ (x[r] - c) for r, (h, c) in enumerate(problems)])
        exchange, skip = divmod(step, interval)
        averaged = x
        if not skip:
            means = x.reshape(servers, per_server, -1).mean(1)
            if peers == "all":
                means = np.broadcast_to(means.mean(0), means.shape)
            else:
                table = PEERS[servers]
                means = (means + means[table[exchange % len(table)]]) / 2
            averaged = np.repeat(means, per_server, axis=0)
        x = averaged - LR * gradients
        seen.append(x)
    return np.stack(seen)


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize(("kind", "size"), WORLDS)
@pytest.mark.parametrize("peers", ["shift_one", "all"])
def test_every_step_is_the_formula(kind: str, size: int, peers: str, interval: int) -> None:
    results = run(kind, size, train, 7, LR, False, {"peers": peers, "interval": interval})
    np.testing.assert_allclose(torch.stack(results, 1).numpy(), by_hand(size, 7, peers, interval), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("peers", ["shift_one", "all"])
@pytest.mark.parametrize("interval", [1, 2])
def test_odd_worlds(size: int, peers: str, interval: int) -> None:
    results = torch.stack(run("threads", size, train, 9, LR, False, {"peers": peers, "interval": interval}), 1)
    np.testing.assert_allclose(results.numpy(), by_hand(size, 9, peers, interval), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("kind", "servers", "per_server", "peers"),
    [
        ("threads", 2, 2, "shift_one"),
        ("gloo", 2, 2, "shift_one"),
        ("threads", 2, 3, "shift_one"),
        ("threads", 3, 2, "shift_one"),
        ("gloo", 3, 2, "shift_one"),
        ("threads", 5, 2, "shift_one"),
        ("threads", 2, 2, "all"),
        ("threads", 1, 2, "all"),
        ("threads", 3, 1, "all"),
    ],
)
def test_hierarchical_averages_between_servers(kind: str, servers: int, per_server: int, peers: str) -> None:
    size = servers * per_server
    results = run(kind, size, train, 5, LR, False, {"peers": peers}, per_server=per_server)
    np.testing.assert_allclose(torch.stack(results, 1).numpy(), by_hand(size, 5, peers, 1, per_server), rtol=1e-12)


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_on_one_server_its_ranks_are_the_peers(kind: str) -> None:
    results = run(kind, 4, train, 5, LR, False, {}, per_server=4)
    np.testing.assert_allclose(torch.stack(results, 1).numpy(), by_hand(4, 5, "shift_one", 1), rtol=1e-12)
    results = run(kind, 3, train, 5, LR, False, {}, per_server=3)
    np.testing.assert_allclose(torch.stack(results, 1).numpy(), by_hand(3, 5, "shift_one", 1), rtol=1e-12)


def test_released_is_the_mean_of_all() -> None:
    released = run("threads", 4, train, 5, LR, False, constructor("decentralized_released"))
    np.testing.assert_allclose(torch.stack(released, 1).numpy(), by_hand(4, 5, "all", 1), rtol=1e-12)


def test_pure_averaging_preserves_the_mean_and_reaches_consensus_of_four_in_two() -> None:
    starts, *after = torch.stack(run("threads", 4, train, 2, 0.0, True, {}), 1)
    assert len(torch.unique(starts, dim=0)) == 4
    for step in after:
        torch.testing.assert_close(step.mean(0), starts.mean(0), rtol=1e-14, atol=1e-14)
    pairs = after[0]
    assert torch.equal(pairs[0], pairs[2]) and torch.equal(pairs[1], pairs[3]) and not torch.equal(pairs[0], pairs[1])
    torch.testing.assert_close(after[1], starts.mean(0).expand(4, -1), rtol=1e-14, atol=1e-14)
