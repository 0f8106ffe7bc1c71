"""QAdam in the place of the optimizer that a user gives: groups, schedules, state, and one count of steps."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

from algorithms.qadam import QAdam
from algorithms.qadam_optimizer import QAdamOptimizer
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.habits import adam, alone, data, loss, network, sgd, train, weights
from tests.ranks import run


def groups(net: nn.Sequential) -> list[dict[str, Any]]:
    first, _, last = net
    return [
        {"params": list(first.parameters()), "lr": 0.02, "betas": (0.8, 0.95)},
        {"params": list(last.parameters()), "weight_decay": 0.3, "eps": 1e-3},
    ]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_warm_up_is_the_given_optimizer_with_its_schedule_bit_for_bit(kind: Any) -> None:
    nets = [network(), network()]
    optimizers = [kind(groups(net), lr=0.01, foreach=False) for net in nets]
    schedules = [StepLR(optimizer, step_size=3, gamma=0.5) for optimizer in optimizers]
    with warnings.catch_warnings(), Engine(nets[0], optimizers[0], QAdam(warmup_steps=20), alone()) as engine:
        warnings.simplefilter("error")
        for k in range(10):
            loss(nets[0], data(0, k)).backward()
            engine.step()
            optimizers[1].zero_grad()
            loss(nets[1], data(0, k)).backward()
            optimizers[1].step()
            for schedule in schedules:
                schedule.step()
            assert torch.equal(weights(nets[0]), weights(nets[1]))


def scheduled(comm: CountedComm, decay: float, before: bool) -> list[float]:
    """How far each step goes; lr becomes 0 after the sixth."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=decay)
    make = lambda: LambdaLR(optimizer, lambda k: float(k < 6))  # noqa: E731
    schedule = make() if before else None
    moved = []
    with Engine(net, optimizer, QAdam(warmup_steps=3), comm) as engine:
        schedule = schedule or make()
        for k in range(9):
            start = weights(net).clone()
            loss(net, data(comm.rank, k)).backward()
            engine.step()
            schedule.step()
            moved.append(float((weights(net) - start).norm()))
    return moved


@pytest.mark.parametrize("before", [True, False], ids=["made before", "made after"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_schedule_of_the_given_optimizer_works_in_the_second_stage(decay: float, before: bool) -> None:
    for moved in run("threads", 2, scheduled, decay, before):
        assert all(m > 0 for m in moved[:6])
        assert moved[6:] == [0.0] * 3


def test_decoupled_weight_decay_in_the_second_stage() -> None:
    """With a gradient of zero, and its momentum gone, AdamW's decay alone is left: x <- x (1 - lr wd)."""
    p = nn.Parameter(torch.full((4,), 2.0))
    model = nn.Module()
    model.p = p
    optimizer = torch.optim.AdamW([p], lr=0.1, weight_decay=0.5, betas=(0.0, 0.999))
    with Engine(model, optimizer, QAdam(warmup_steps=1), alone()) as engine:
        p.sum().backward()
        engine.step()
        before = p.detach().clone()
        (p * 0).sum().backward()
        engine.step()
    torch.testing.assert_close(p.detach(), before * (1 - 0.1 * 0.5))


def test_arguments_of_qadam_replace_the_optimizer_s() -> None:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.3)
    with Engine(net, optimizer, QAdam(lr=0.5, betas=(0.5, 0.6), eps=1e-2, weight_decay=0.0), alone()) as engine:
        [group] = engine.optimizer.param_groups
        assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.5, 0.6), 1e-2, 0.0)
        assert group["decoupled_weight_decay"]


def test_what_has_no_meaning_is_refused() -> None:
    net = network()

    def refusal(optimizer: torch.optim.Optimizer, **options: Any) -> str:
        with pytest.raises(ValueError) as caught:
            Engine(net, optimizer, QAdam(**options), alone())
        return str(caught.value)

    assert "SGD: its lr means nothing to QAdam" in refusal(sgd(net))
    assert "RMSprop: its lr means nothing" in refusal(torch.optim.RMSprop(net.parameters()))
    assert "Adam(amsgrad=True)" in refusal(torch.optim.Adam(net.parameters(), amsgrad=True))
    assert "AdamW(maximize=True)" in refusal(torch.optim.AdamW(net.parameters(), maximize=True))
    optimizer = adam(net)
    StepLR(optimizer, 3)
    assert "lr=0.5: a schedule sets" in refusal(optimizer, lr=0.5)
    optimizer = sgd(net)
    StepLR(optimizer, 3)
    assert "its schedule of lr" in refusal(optimizer, lr=0.5)


def test_what_is_replaced_is_said_and_its_schedule_is_no_silent_dud() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.02)
    with pytest.warns(UserWarning, match=r"Adam of its own \(lr=0.05\) instead of SGD"):
        engine = Engine(net, optimizer, QAdam(lr=0.05), alone())
    with engine:
        assert engine.optimizer.param_groups[0]["weight_decay"] == 0.02, "coupled, as in Adam"
        train(engine, engine.comm, 2)
        StepLR(optimizer, 1).step()
        with pytest.raises(RuntimeError, match=r"SGD: its lr was changed.*engine\.optimizer"):
            train(engine, engine.comm, 1)


def through_the_given_optimizer(comm: CountedComm, stop: bool) -> Tensor:
    """DDP's habit: model and optimizer are saved by the names the user has for them."""
    net = network()
    optimizer = adam(net)
    engine = Engine(net, optimizer, QAdam(warmup_steps=3), comm)
    train(engine, comm, 5)
    if stop:
        saved = copy.deepcopy([net.state_dict(), optimizer.state_dict(), engine.state_dict()])
        engine.close()
        net = network()
        optimizer = adam(net)
        engine = Engine(net, optimizer, QAdam(warmup_steps=3), comm)
        for part, state in zip((net, optimizer, engine), saved, strict=True):
            part.load_state_dict(state)  # type: ignore[attr-defined]
    train(engine, comm, 5, first=5)
    engine.close()
    return weights(net)


def test_state_is_saved_and_loaded_through_the_given_optimizer() -> None:
    expected = run("threads", 2, through_the_given_optimizer, False)
    for got, wanted in zip(run("threads", 2, through_the_given_optimizer, True), expected, strict=True):
        assert torch.equal(got, wanted)


class Branches(nn.Module):
    """Its first parameters are used late, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.main = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        return self.main(x) + self.idle(x) if both else self.main(x)


def first_unused(comm: CountedComm, use_from: int) -> Tensor:
    net = Branches()
    for p in net.parameters():
        p.data.fill_(0.1)
    with Engine(net, adam(net), QAdam(warmup_steps=4), comm, find_unused_parameters=True) as engine:
        for k in range(1, 13):
            x = data(comm.rank, k)
            (net(x, k >= use_from) - x.sum(1, keepdim=True)).square().mean().backward()
            engine.step()
    return weights(net)


@pytest.mark.parametrize("use_from", [3, 100])
def test_replicas_stay_equal_when_the_first_parameter_is_unused(use_from: int) -> None:
    first, second = run("threads", 2, first_unused, use_from)
    assert torch.equal(first, second)
    assert bool((first[:7] == 0.1).all()) == (use_from == 100)


def frozen_corrections(comm: CountedComm) -> list[float]:
    """Lengths of the steps of a parameter that is used from step 3 on; gradients 1, so that m and v are constant."""
    net = nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0, betas=(0.9, 0.9))
    lengths = []
    with Engine(net, optimizer, QAdam(warmup_steps=4), comm, find_unused_parameters=True) as engine:
        for k in range(1, 9):
            before = float(net[0].detach())
            (net[1].sum() + (net[0].sum() if k >= 3 else 0.0)).backward()
            engine.step()
            lengths.append(before - float(net[0].detach()))
    return lengths


def test_a_parameter_used_late_keeps_the_correction_of_its_own_count() -> None:
    """Corrected moments of a constant gradient are 1 from the first update on, so each step is lr long."""
    [lengths] = run("threads", 1, frozen_corrections)
    assert lengths[:2] == [0.0, 0.0]
    assert lengths[2:] == pytest.approx([1.0] * 6, rel=1e-5)


def passed_on(comm: CountedComm) -> list[int]:
    """Steps of warm-up that each of two engines takes with one optimizer."""
    net = network()
    optimizer = QAdamOptimizer(net.parameters(), lr=0.01, warmup_steps=3)
    counts = []
    for _ in range(2):
        with Engine(net, optimizer, QAdam(), comm) as engine:
            sent = []
            for k in range(6):
                before = engine.sent()["flat"]
                train(engine, comm, 1, first=k)
                sent.append(engine.sent()["flat"] - before)
        counts.append(sum(1 for nbytes in sent if nbytes == sent[0]))
    return counts


def test_an_optimizer_in_a_new_engine_warms_up_again() -> None:
    assert run("threads", 2, passed_on) == [[3, 3], [3, 3]]
