"""What an algorithm may ask of the engine: six algorithms of the literature, each against its equations.

The check values are those of four ranks on quadratics (`Quadratics`), which a program of its own has computed from the
papers' equations in float64; the oracles in this file follow the equations with NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.base import Algorithm, Bucket, Comm, Op, Turn, When
from algorithms.primitives import c_fp_s
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.proofs.diloco import DiLoCo
from tests.proofs.exponential import Exponential
from tests.proofs.powersgd import PowerSGD
from tests.proofs.quadratics import LR, OPTIMUM, RANKS, STEPS, A, C, Make, descend
from tests.proofs.relay import RelaySum
from tests.proofs.streaming_diloco import StreamingDiLoCo
from tests.proofs.top_k import TopK
from tests.ranks import run


def four_numbers(x: np.ndarray) -> list[float]:
    """Sum, norm and distance from the optimum of the mean of all, and the largest distance of a rank from it."""
    mean = x.mean(0)
    spread = float(np.linalg.norm(x - mean, axis=1).max())
    return [float(mean.sum()), float(np.linalg.norm(mean)), float(np.linalg.norm(mean - OPTIMUM)), spread]


CHECKS = [
    (DiLoCo, (), [0.114208, 0.208642, 0.076667, 0]),
    (TopK, (), [0.118876, 0.296658, 0.140484, 0]),
    (lambda: PowerSGD(1, "ones"), (4, 2), [0.117645, 0.276087, 0.000662, 0]),
    (Exponential, (), [0.107717, 0.271410, 0.011075, 0.044892]),
    (RelaySum, (), [0.115986, 0.271324, 0.005362, 0.000139]),
]


@pytest.mark.parametrize(("make", "shape", "wanted"), CHECKS, ids=["diloco", "top_k", "powersgd", "gossip", "relay"])
def test_check_values(make: Make, shape: tuple[int, ...], wanted: list[float]) -> None:
    found = np.stack(run("threads", RANKS, descend, make, 1, shape or (-1,), False))
    assert four_numbers(found) == pytest.approx(wanted, abs=1e-6)


def streamed(delay: int) -> tuple[np.ndarray, np.ndarray]:
    """Streaming DiLoCo of two fragments, interval 4: every rank's x, and theta."""
    x, theta, m = np.zeros((RANKS, 8)), np.zeros(8), np.zeros(8)
    sent: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for t in range(1, STEPS + 1):
        x = x - LR * A * (x - C)
        if t % 2 == 0:
            fragment = np.arange(8) % 2 == (0 if t % 4 == 2 else 1)
            sent[t + delay] = fragment, (theta - x).mean(0)
        if t in sent:
            fragment, d = sent.pop(t)
            m = np.where(fragment, 0.9 * m + d, m)
            theta = np.where(fragment, theta - 0.7 * (d + 0.9 * m), theta)
            x = np.where(fragment, 0.5 * x + 0.5 * theta, x)
    return x, theta


def stream(delay: int) -> Make:
    return lambda: StreamingDiLoCo(delay=delay)


def test_the_oracle_of_streaming_diloco_has_its_check_value() -> None:
    x, theta = streamed(1)
    assert four_numbers(theta[None])[:3] == pytest.approx([0.125956, 0.192791, 0.119681], abs=1e-6)
    assert np.linalg.norm(x - theta, axis=1).max() == pytest.approx(1.095488, abs=1e-6)


@pytest.mark.parametrize(("kind", "delay"), [("threads", 0), ("threads", 1), ("threads", 3), ("gloo", 3)])
def test_fragments_land_steps_later(kind: str, delay: int) -> None:
    """With three steps' delay, two fragments are on their way at a time."""
    x, _ = streamed(delay)
    make = stream(delay) if kind == "threads" else StreamingDiLoCo
    found = np.stack(run(kind, RANKS, descend, make, 2, (-1,), False))
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-13)


def low_rank(comm: CountedComm, rank: int) -> list[Tensor]:
    """What PowerSGD makes of given gradients of a matrix, a stack of kernels and a vector."""
    shapes = [(6, 5), (4, 3, 2), (7,)]
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
    model = nn.Module()
    for number, p in enumerate(params):
        model.register_parameter(f"p{number}", p)
    generator = torch.Generator().manual_seed(comm.rank)
    with Engine(model, torch.optim.SGD(params, lr=1.0), PowerSGD(rank), comm) as engine:
        for _ in range(3):
            given = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
            sum((p * g).sum() for p, g in zip(params, given, strict=True)).backward()  # type: ignore[union-attr]
            engine.step()
        return [p.detach().clone() for p in params]


def low_rank_oracle(rank: int) -> list[np.ndarray]:
    """The same with NumPy: W ranks as one that is fed the mean gradient, since everything is linear."""
    shapes = [(6, 5), (4, 6), (7, 1)]
    draws = [torch.Generator().manual_seed(r) for r in range(RANKS)]
    x, e, q = ([np.zeros(s) for s in shapes], [np.zeros(s) for s in shapes], [])
    for number, (rows, columns) in reversed(list(enumerate(shapes))):  # a bucket begins with what was registered last
        seed = torch.Generator().manual_seed(len(shapes) - 1 - number)
        size = (columns, min(rows, columns, rank))
        q.insert(0, torch.randn(size, generator=seed, dtype=torch.float64).numpy())
    for _ in range(3):
        given = [
            [torch.randn(s, generator=g, dtype=torch.float64).numpy() for s in ((6, 5), (4, 3, 2), (7,))] for g in draws
        ]
        for k, shape in enumerate(shapes):
            m = np.mean([one[k].reshape(shape) for one in given], axis=0) + e[k]
            p = np.linalg.qr(m @ q[k])[0]
            q[k] = m.T @ p
            e[k] = m - p @ q[k].T
            x[k] -= p @ q[k].T
    return x


@pytest.mark.parametrize("rank", [1, 2, 100])
def test_powersgd_on_matrices_is_one_rank_s_on_the_mean(rank: int) -> None:
    wanted = low_rank_oracle(rank)
    for found in run("threads", RANKS, low_rank, rank):
        for x, oracle in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x.reshape(oracle.shape).numpy(), oracle, atol=1e-12)


def test_a_bucket_is_not_sent_again_before_it_has_landed() -> None:
    with pytest.raises(ValueError, match=r"turns\(6\): bucket 0 is on its way since step 2 and lands in step 7"):
        run("threads", RANKS, descend, stream(5), 2, (-1,), False)


class InsideAndBetween(Algorithm):
    """Two moments of a step: gradients inside the server, in backward; weights of all ranks, after every other step."""

    consensus = 0.75

    def turns(self, step: int) -> list[Turn]:
        inside = Turn(When.BACKWARD, communicate=self.inside)
        return [inside] if step % 2 else [inside, Turn(When.STEP)]

    def inside(self, bucket: Bucket, comm: Comm, step: int) -> None:
        assert comm.intra is not None
        comm.intra.all_reduce(bucket.grad, Op.AVG)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_fp_s(bucket.weight, comm)


def test_two_moments_in_one_step() -> None:
    x = np.zeros((RANKS, 8))
    for t in range(1, STEPS + 1):
        g = A * (x - C)
        x = x - LR * np.repeat(g.reshape(2, 2, 8).mean(1), 2, axis=0)
        x = x if t % 2 else np.broadcast_to(x.mean(0), x.shape)
    found = np.stack(run("threads", RANKS, descend, InsideAndBetween, 1, (-1,), False, per_server=2))
    np.testing.assert_allclose(found, x, atol=1e-13)


class Pairs(Algorithm):
    """Gradients in groups of two ranks, by parts: reduce-scatter, then an all-gather."""

    consensus = 0.75

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        first = comm.rank - comm.rank % 2
        pair = comm.subgroup([first, first + 1])
        part = pair.reduce_scatter(bucket.grad.view(2, -1), Op.AVG)
        bucket.grad.copy_(pair.all_gather(part).flatten())


@pytest.mark.parametrize("kind", ["threads", "gloo"])
def test_groups_of_ranks(kind: str) -> None:
    x = np.zeros((RANKS, 8))
    for _ in range(STEPS):
        x = x - LR * np.repeat((A * (x - C)).reshape(2, 2, 8).mean(1), 2, axis=0)
    np.testing.assert_allclose(np.stack(run(kind, RANKS, descend, Pairs, 1, (-1,), False)), x, atol=1e-13)


@pytest.mark.parametrize("make", [Exponential, DiLoCo])
def test_replicas_meet_when_settled(make: Make) -> None:
    apart = np.stack(run("threads", RANKS, descend, make, 1, (-1,), False))
    met = np.stack(run("threads", RANKS, descend, make, 1, (-1,), True))
    assert (met == met[0]).all()
    np.testing.assert_allclose(met[0], apart.mean(0), atol=1e-13)


class AsyncAndMore(Algorithm):
    consensus = 0.75

    def turns(self, step: int) -> list[Turn]:
        return [Turn(When.ASYNC), Turn(When.STEP)]

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None: ...


def test_rounds_beside_the_steps_go_with_nothing_else() -> None:
    with pytest.raises(ValueError, match=r"AsyncAndMore\.turns\(1\): a step with an ASYNC turn has no other"):
        run("threads", 1, descend, AsyncAndMore, 2, (-1,), False)


class Twice(Algorithm):
    def partition(self, params: Any) -> Any:
        return [params, params[:1]]

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None: ...


def test_a_choice_of_buckets_that_is_no_partition_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Twice\.partition: 3 parameters in its buckets, 2 are trained; each belongs"):
        run("threads", 1, descend, Twice, 2, (-1,), False)
