"""Low-precision decentralised SGD: equal replicas, and the update written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.catalogue import constructor
from tests.linear import Linear
from tests.ranks import run

LR = 0.125
THIRD, FIVE_THIRDS = np.float32(3), np.float32(5 / 3)


def gradient(rank: int, step: int) -> np.ndarray:
    """(32,), of few bits: products with the learning rate are exact, so the reference sees the very same weights."""
    g = np.random.default_rng(100 * step + rank).normal(size=32)
    return (np.rint(g * 64) / 64).astype(np.float32)


def train(comm: CountedComm, steps: int, options: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model = Linear(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with Engine(model, optimizer, LowPrecisionDecentralized(**options), comm) as engine:
        for step in range(steps):
            model(torch.from_numpy(gradient(comm.rank, step))).backward()
            engine.step()
        return model.x.detach().clone(), {name: t.clone() for name, t in engine.buckets[0].state.items()}


def decoded(x: np.ndarray) -> np.ndarray:
    """x (N,) on its 8-bit grid and back (docs/algorithms.md, Codecs)."""
    scale = np.float32(255) / ((x.max() - x.min()) + np.float32(1e-7))
    upper = np.rint(x.max() * scale)
    codes = np.clip(np.minimum(np.rint(x * scale), upper) - (upper - 255), 0, 255)
    return ((codes + (upper - 255)) / scale).astype(np.float32)


def by_hand(servers: int, steps: int, interval: int = 1, per_server: int = 1, single: bool = False) -> np.ndarray:
    """Weights of every rank after `steps` steps, (ranks, 32); one model per server after each exchange."""
    ranks = servers * per_server
    x = np.tile(torch.linspace(-1, 1, 32).numpy(), (ranks, 1))
    own = x[:servers].copy()
    left, right = own.copy(), own.copy()
    for step in range(steps):
        x = np.stack([x[r] - np.float32(LR) * gradient(r, step) for r in range(ranks)])
        if step % interval:
            continue
        means = x.reshape(servers, per_server, -1).mean(1)
        if servers > 1 or single:
            z = (left + right) / THIRD - FIVE_THIRDS * own + means
            change = np.stack([decoded(row) for row in z])
            left, right = left + np.roll(change, 1, axis=0), right + np.roll(change, -1, axis=0)
            means = own = own + change
        x = np.repeat(means, per_server, axis=0)
    return x


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize(("kind", "size"), [("threads", n) for n in (1, 2, 3, 5)] + [("gloo", 2), ("gloo", 4)])
def test_ten_steps_are_the_formula(kind: str, size: int, interval: int) -> None:
    results = torch.stack([x for x, _ in run(kind, size, train, 10, {"interval": interval})]).numpy()
    np.testing.assert_allclose(results, by_hand(size, 10, interval), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "size"), [("threads", n) for n in (2, 3, 5)] + [("gloo", 2), ("gloo", 4)])
@pytest.mark.parametrize("interval", [1, 2])
def test_the_copies_of_a_model_are_equal_bit_for_bit(kind: str, size: int, interval: int) -> None:
    results = run(kind, size, train, 20, {"interval": interval})
    states = [state for _, state in results]
    for rank, state in enumerate(states):
        assert torch.equal(state["own"], states[(rank + 1) % size]["left"])
        assert torch.equal(state["own"], states[(rank - 1) % size]["right"])
    assert not torch.equal(states[0]["own"], states[1]["own"]), "models of different ranks differ"


@pytest.mark.parametrize(("kind", "servers", "per_server"), [("threads", 2, 2), ("threads", 3, 2), ("gloo", 2, 2)])
def test_hierarchical_is_a_ring_of_servers(kind: str, servers: int, per_server: int) -> None:
    results = run(kind, servers * per_server, train, 10, {}, per_server=per_server)
    got = torch.stack([x for x, _ in results]).numpy()
    np.testing.assert_allclose(got, by_hand(servers, 10, per_server=per_server), rtol=0, atol=1e-5)
    assert all(np.array_equal(got[k], got[k - k % per_server]) for k in range(len(got))), "one model per server"


def test_on_one_server_its_ranks_are_the_ring() -> None:
    """Released: the server's mean, and the leader is its own neighbour on both sides."""
    for options, expected in (
        ({}, by_hand(2, 10)),
        (constructor("low_precision_decentralized_released"), by_hand(1, 10, per_server=2, single=True)),
    ):
        results = torch.stack([x for x, _ in run("threads", 2, train, 10, options, per_server=2)]).numpy()
        np.testing.assert_allclose(results, expected, rtol=0, atol=1e-5)
