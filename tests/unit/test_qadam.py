"""QAdam against torch's Adam, and its second stage against the formulas in NumPy (docs/algorithms.md, QAdam)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.base import Bucket
from algorithms.qadam import QAdam
from algorithms.qadam_optimizer import QAdamOptimizer
from bagua_bench.comm import CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine
from tests.catalogue import constructor
from tests.linear import Linear
from tests.ranks import run


def inputs(rank: int, step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * rank + step))


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    for k, p in enumerate(net.parameters()):
        p.data = torch.linspace(-0.9, 1, p.numel()).roll(k).view_as(p)
    return net


def loss(net: nn.Module, x: Tensor) -> Tensor:
    return (net(x) - x[:, :2] ** 2).square().mean()


def warm(comm: CountedComm, steps: int, same_data: bool) -> tuple[list[float], Tensor]:
    net = network()
    algorithm = QAdam(lr=1e-3, weight_decay=0.1, warmup_steps=steps + 1)
    losses = []
    with Engine(net, torch.optim.SGD(net.parameters(), lr=1.0), algorithm, comm, bucket_size=100) as engine:
        for k in range(steps):
            value = loss(net, inputs(0 if same_data else comm.rank, k % 50))
            value.backward()
            engine.step()
            losses.append(value.item())
    return losses, torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize(("kind", "size", "steps"), [("threads", 1, 1000), ("threads", 2, 200), ("gloo", 2, 200)])
def test_warm_up_is_torch_adam_bit_for_bit(kind: str, size: int, steps: int) -> None:
    net = network()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    losses = []
    for k in range(steps):
        adam.zero_grad()
        value = loss(net, inputs(0, k % 50))
        value.backward()
        adam.step()
        losses.append(value.item())
    for got, weights in run(kind, size, warm, steps, True):
        assert got == losses
        assert torch.equal(weights, torch.cat([p.detach().flatten() for p in net.parameters()]))


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng(100 * step + rank).normal(size=12).astype(np.float32)


def train(comm: CountedComm, steps: int, options: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model = Linear(12)
    algorithm = QAdam(lr=0.01, warmup_steps=4, **options)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, comm) as engine:
        for k in range(1, steps + 1):
            model(torch.from_numpy(gradient(comm.rank, k))).backward()
            engine.step()
        return model.x.detach().clone(), {key: value.clone() for key, value in engine.buckets[0].state.items()}


def minmax(rows: np.ndarray) -> np.ndarray:
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    scale = np.float32(255) / ((high - low) + np.float32(1e-7))
    upper = np.rint(high * scale)
    codes = np.clip(np.minimum(np.rint(rows * scale), upper) - (upper - 255), 0, 255)
    return ((codes + (upper - 255)) / scale).astype(np.float32)


def signs(rows: np.ndarray) -> np.ndarray:
    return np.where(rows >= 0, 1, -1) * np.abs(rows).mean(-1, keepdims=True, dtype=np.float64).astype(np.float32)


def reference(
    n: int, steps: int, codec: Any, feedback: bool, drift: bool, last: int, wd: float, late: bool
) -> np.ndarray:
    """x after `steps` steps of n ranks. `last`: last step that updates m and v by Adam; W = 4."""
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    m, v = np.zeros(12), np.zeros(12)
    sent, reduced = np.zeros((n, n, 12 // n)), np.zeros((n, 12 // n))
    for t in range(1, steps + 1):
        gradients = [gradient(r, t).astype(np.float64) for r in range(n)]
        if t <= 4:
            if t <= last:
                g = np.mean(gradients, 0) + wd * x
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        else:
            local = np.stack([0.9 * m + 0.1 * (g + (wd * x if late else 0)) for g in gradients]).reshape(n, n, -1)
            if n == 1:
                m = local.reshape(-1)
            else:
                target = local + sent * feedback
                coded = codec(target.astype(np.float32))
                sent = target - coded
                target = coded.mean(0) + reduced * feedback
                final = codec(target.astype(np.float32))
                reduced = target - final
                m = final.reshape(-1).astype(np.float64)
        correction = 1 - 0.999 ** (t if drift or t <= 4 else 4)
        x = (x - 0.01 / (1 - 0.9**t) * m / (np.sqrt(v) / np.sqrt(correction) + 1e-8)).astype(np.float32)
    return x


CASES = [  # options of QAdam, and of the reference: codec, feedback, drift, last update, weight decay, decay in stage 2
    ({}, (signs, True, False, 4, 0.0, True)),
    ({"weight_decay": 0.1}, (signs, True, False, 4, 0.1, True)),
    ({"weight_decay": 0.1, "weight_decay_stage": "warmup"}, (signs, True, False, 4, 0.1, False)),
    ({"error_feedback": False}, (signs, False, False, 4, 0.0, True)),
    ({"bias_correction": "drift"}, (signs, True, True, 4, 0.0, True)),
    ({"freeze_after": "warmup_minus_one"}, (signs, True, False, 3, 0.0, True)),
    ({"codec": "minmax_uint8"}, (minmax, True, False, 4, 0.0, True)),
    ({"codec": "minmax_uint8", "error_feedback": False}, (minmax, False, False, 4, 0.0, True)),
]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("options", "expected"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_second_stage(size: int, options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    results = run("threads", size, train, 12, options)
    assert all(torch.equal(x, results[0][0]) for x, _ in results), "replicas differ"
    np.testing.assert_allclose(results[0][0].numpy(), reference(size, 12, *expected), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("size", [2, 4])
def test_second_stage_on_processes(size: int) -> None:
    results = run("gloo", size, train, 12, {})
    np.testing.assert_allclose(results[-1][0].numpy(), reference(size, 12, *CASES[0][1]), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_released_is_all_of_its_deviations_at_once(size: int) -> None:
    options = {k: v for k, v in constructor("qadam_released").items() if k not in ("lr", "warmup_steps")}
    results = run("threads", size, train, 12, {**options, "weight_decay": 0.1})
    expected = reference(size, 12, minmax, False, True, 3, 0.1, False)
    np.testing.assert_allclose(results[0][0].numpy(), expected, rtol=2e-4, atol=2e-5)


def test_drift_lengthens_the_steps_towards_one_over_sqrt_1_minus_beta2_to_the_w() -> None:
    """With m and v constant: 3.24 for W = 100 in the limit."""
    warmup = 100
    lengths = {}
    for correction in ("frozen", "drift"):
        p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = QAdamOptimizer([p], lr=1.0, warmup_steps=warmup, stages=(correction, "warmup", "both"))
        optimizer.link(Bucket("all", [p], p.detach(), torch.empty(0)))
        state = optimizer.state[p]
        state["step"] += warmup
        optimizer.taken = 50_000  # the first moment's correction is over, the drift too
        state["exp_avg"] += 1
        state["exp_avg_sq"] += 1
        p.grad = torch.zeros_like(p)
        optimizer.step()
        lengths[correction] = float(p.detach().abs())
    assert lengths["drift"] / lengths["frozen"] == pytest.approx(1 / (1 - 0.999**warmup) ** 0.5, rel=1e-6)
    assert lengths["drift"] / lengths["frozen"] == pytest.approx(3.24, abs=0.005)


def test_every_group_has_its_own_betas_and_weight_decay() -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [a], "betas": (0.5, 0.9)}, {"params": [b], "weight_decay": 1.0}]
    model = nn.Module()
    model.a, model.b = a, b
    engine = Engine(model, QAdamOptimizer(groups, warmup_steps=1), QAdam(), ThreadComm.world(1)[0])
    for _ in range(2):
        momenta = [engine.optimizer.state[p]["exp_avg"].clone() for p in (a, b)]
        before = b.detach().clone()
        (3 * a.sum() + 3 * b.sum()).backward()
        engine.step()
    after = [engine.optimizer.state[p]["exp_avg"] for p in (a, b)]
    torch.testing.assert_close(after[0], 0.5 * momenta[0] + 0.5 * 3)
    torch.testing.assert_close(after[1], 0.9 * momenta[1] + 0.1 * (3 + before))
    engine.close()


def late_riser(comm: CountedComm, eps: float) -> float:
    """How far an element goes in its first compressed step that had next to no gradient before; uncompressed here."""
    model = Linear(1)
    algorithm = QAdam(lr=0.01, warmup_steps=4, eps=eps)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, comm) as engine:
        for k in range(1, 6):
            before = float(model.x.detach())
            model(torch.tensor([1e-12 if k < 5 else 1.0])).backward()
            engine.step()
        return before - float(model.x.detach())


@pytest.mark.parametrize("eps", [1e-8, 1e-4])
def test_eps_bounds_the_step_where_the_frozen_moment_is_next_to_nothing(eps: float) -> None:
    [moved] = run("threads", 1, late_riser, eps)
    m = 0.1 / (1 - 0.9**5)  # beta1 = 0.9; sqrt(v) is 1e-12, which is nothing beside eps
    assert moved == pytest.approx(0.01 * m / eps, rel=1e-3)


def test_warmup_steps_must_be_positive() -> None:
    with pytest.raises(ValueError, match="warmup_steps=0"):
        QAdam(warmup_steps=0).optimizer(torch.optim.Adam([nn.Parameter(torch.zeros(1))]))


def test_hierarchical_quantises_the_means_of_servers() -> None:
    """Four ranks on two servers with pairwise equal data are two ranks."""
    results = run("threads", 4, hierarchical_pairs, 12, per_server=2)
    flat = run("threads", 2, train, 12, {})
    for x in results:
        torch.testing.assert_close(x, flat[0][0], rtol=1e-5, atol=1e-6)


def hierarchical_pairs(comm: CountedComm, steps: int) -> Tensor:
    model = Linear(12)
    algorithm = QAdam(lr=0.01, warmup_steps=4)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, comm) as engine:
        for k in range(1, steps + 1):
            model(torch.from_numpy(gradient(comm.rank // 2, k))).backward()
            engine.step()
    return model.x.detach().clone()


def warm_for_one_step(comm: CountedComm) -> tuple[Tensor, Tensor]:
    found = []
    for freeze_after in ("warmup", "warmup_minus_one"):
        model = nn.Linear(3, 2)
        nn.init.constant_(model.weight, 0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        algorithm = QAdam(warmup_steps=1, freeze_after=freeze_after)  # type: ignore[arg-type]
        with Engine(model, optimizer, algorithm, comm) as engine:
            for step in range(3):
                model(torch.full((1, 3), 1.0 + step)).sum().backward()
                engine.step()
        found.append(model.weight.detach().clone())
    return found[0], found[1]


def test_the_second_moment_is_updated_at_least_once() -> None:
    for first, second in run("threads", 2, warm_for_one_step):
        torch.testing.assert_close(first, second)
        assert not torch.equal(first, torch.full((2, 3), 0.5))
