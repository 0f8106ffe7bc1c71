"""Errors and verdicts of the engine, its communicators, its algorithms and records that no other test meets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from algorithms.async_model_average import AsyncModelAverage
from algorithms.codecs.kernels import kernels_for
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from algorithms.qadam import QAdam
from algorithms.qadam_optimizer import QAdamOptimizer
from bagua_bench.comm import CommError, CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.lanes import ThreadLane
from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.engine.state import mean
from bagua_bench.results import provenance
from bagua_bench.results.result import Averaging, Checks, RankResult, with_traffic
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.checks import check_replicas
from tests.catalogue import resolved
from tests.ranks import outcomes, run


def alone() -> CountedComm:
    return ThreadComm.world(1)[0]


def test_a_group_of_one_reduces_and_scatters_to_itself() -> None:
    x = torch.arange(3.0)[None]
    row = alone().reduce_scatter(x)
    assert torch.equal(row, x[0]) and row.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("ranks", [[1, 0], [0, 0], [1], [0, 3], []])
def test_a_group_is_of_ranks_in_order_this_one_among_them(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match=r"subgroup\(\["):
        ThreadComm.world(2)[0].subgroup(ranks)


def in_a_group(comm: ThreadComm) -> None:
    group = comm.subgroup([0, 1])
    if comm.rank == 1:
        comm.fail()
        raise KeyError("rank 1's own")
    group.barrier()


def test_a_rank_that_fails_ends_the_groups_that_it_is_in() -> None:
    first, second = outcomes("threads", 2, in_a_group)
    assert isinstance(first, CommError) and isinstance(second, KeyError)


def test_the_default_group_has_to_exist() -> None:
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group first"):
        TorchComm.default()


def test_a_closed_lane_takes_no_work() -> None:
    lane = ThreadLane()
    lane.close()
    with pytest.raises(RuntimeError, match="the lane is closed"):
        lane.submit(lambda: None)


def test_arguments_out_of_their_bounds() -> None:
    with pytest.raises(ValueError, match="interval_ms=0: must be above 0"):
        AsyncModelAverage(interval_ms=0)
    with pytest.raises(ValueError, match="warmup_steps=0: must be at least 1"):
        QAdamOptimizer([nn.Parameter(torch.zeros(1))], lr=0.1, warmup_steps=0)


def test_integers_have_no_mean() -> None:
    assert mean([torch.tensor(3), torch.tensor(4)]) == 3
    assert torch.equal(mean([torch.zeros(2), torch.ones(2)]), torch.full((2,), 0.5))


def saved(comm: CountedComm, folder: Path, width: int, load: bool) -> Tensor:
    net = nn.Linear(3, width)
    with Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), GradientAllReduce(), comm) as engine:
        if not load:
            engine.save(folder)
        else:
            with pytest.raises(ValueError, match=r"weight: shape \(2, 3\), the model's is \(4, 3\)"):
                engine.load(folder)
        return net.weight.detach().clone()


def test_a_checkpoint_of_another_width_is_refused(tmp_path: Path) -> None:
    run("gloo", 1, saved, tmp_path / "narrow", 2, False)
    run("gloo", 1, saved, tmp_path / "narrow", 4, True)


def test_a_parameter_that_is_gone_is_named() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    with Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), GradientAllReduce(), alone()) as engine:
        engine.model(torch.ones(1, 3)).sum().backward()
        engine.step()
        del net[1].bias
        net[1].bias = None
        with pytest.raises(RuntimeError, match=r"1\.bias: this parameter is gone"):
            engine.model(torch.ones(1, 3))


def test_synchronizing_twice_is_synchronizing_once() -> None:
    net = nn.Linear(3, 1, bias=False)
    with Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), GradientAllReduce(), alone()) as engine:
        before = net.weight.detach().clone()
        engine.model(torch.ones(1, 3)).sum().backward()
        engine.synchronize()
        engine.synchronize()
        engine.optimize()
        engine.finish_step()
        assert torch.allclose(net.weight, before - 0.1)


def refused(model: nn.Module) -> str:
    with pytest.raises(ValueError) as raised:
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), GradientAllReduce(), alone())
    return str(raised.value)


class Marked(Tensor):
    """A tensor of a class of its own."""


def test_parameters_are_plain_tensors() -> None:
    model = nn.Module()
    model.own = nn.Parameter(torch.ones(3).as_subclass(Marked))
    assert refused(model) == "own: a Marked; allowed: plain tensors"


def test_of_three_views_of_one_storage_the_two_that_overlap_are_named() -> None:
    storage, model = torch.zeros(8), nn.Module()
    for name, view in (("first", storage[:2]), ("second", storage[4:7]), ("third", storage[6:8])):
        setattr(model, name, nn.Parameter(view))
    assert refused(model).startswith("third: it shares memory with second")


def test_a_second_backward_pass_under_a_loss_scale_is_refused_where_weights_are_averaged() -> None:
    net = nn.Linear(3, 1)
    with Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), Decentralized(peers="all"), alone()) as engine:
        engine.scale = LossScale(torch.device("cpu"))
        net(torch.ones(1, 3)).sum().backward()
        with pytest.raises(RuntimeError, match="backward"):
            net(torch.ones(1, 3)).sum().backward()


def test_what_is_neither_an_algorithm_nor_a_peer_is_refused() -> None:
    cell = resolved("algo=gradient_allreduce", "task=quadratic")
    cell = replace(cell, algo=replace(cell.algo, target="collections.OrderedDict", options={}))
    net = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"algo\._target_=collections\.OrderedDict: neither an Algorithm nor a Peer"):
        make_trainer(cell, net, torch.optim.SGD(net.parameters(), lr=0.1), alone())


def test_kernels_take_rows_that_lie_together() -> None:
    assert kernels_for(torch.zeros(3, 4).t()) is None
    assert kernels_for(torch.zeros(3, 4, dtype=torch.float64)) is None


def test_provenance_outside_a_checkout_and_of_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "HOME", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit.__wrapped__() is None
    assert provenance._version("no-such-package") is None


def a_rank(sent: float) -> RankResult:
    return RankResult(seconds=({"step": 1.0},) * 4, losses=(), sent={"flat": sent}, metrics={}, peak_memory=None)


PASSED = Checks(passed=True, reason=None)


def test_a_run_that_sent_nothing_is_wrong() -> None:
    assert with_traffic(PASSED, [a_rank(0.0)] * 2, 2, None, 0).reason == "nothing was sent in 4 timed steps"
    assert with_traffic(PASSED, [a_rank(0.0), a_rank(1.0)], 2, None, 0) == PASSED
    assert with_traffic(PASSED, [a_rank(0.0)], 1, None, 0) == PASSED, "alone there is nothing to send"


def test_a_run_with_too_few_averaging_rounds_is_wrong() -> None:
    few, enough = (Averaging(rounds, 1.0, 1.0) for rounds in (2, 3))
    found = with_traffic(PASSED, [a_rank(1.0)] * 2, 2, few, 3)
    assert not found.passed and found.reason is not None and found.reason.startswith("2 averaging rounds were applied")
    assert with_traffic(PASSED, [a_rank(1.0)] * 2, 2, enough, 3) == PASSED


def test_a_value_that_is_none_of_the_choices() -> None:
    with pytest.raises(ValueError, match="peers=shift-one: allowed: shift_one, all"):
        Decentralized(peers="shift-one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="freeze_after=x: allowed: warmup, warmup_minus_one"):
        QAdam(freeze_after="x")  # type: ignore[arg-type]


def test_an_algorithm_that_replaces_the_optimizer_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.1) for part in net]
    monkeypatch.setattr(TorchComm, "default", lambda: pytest.fail("groups that nobody closes"))
    with pytest.raises(ValueError, match="optimizer: 2 of them; QAdam takes the place of one"):
        Engine(net, optimizers, QAdam(lr=0.1))
    with pytest.raises(ValueError, match="its lr means nothing to QAdam"):
        Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), QAdam())


def far_apart(comm: CountedComm) -> tuple[Checks, float]:
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    model.weight.data.fill_(1.0 + comm.rank)
    return check_replicas(model, 0.1), float(model.weight)


def test_replicas_of_float64_are_compared_and_stay_as_they_are() -> None:
    """Weights of 1 and 2: 0.5 from their mean, and norms of 1.5 on average."""
    for rank, (checks, weight) in enumerate(run("gloo", 2, far_apart)):
        assert not checks.passed and checks.replicas == pytest.approx(0.5 / 1.5)
        assert weight == 1.0 + rank


def on_unequal_servers(comm: CountedComm) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = "122"[comm.rank]
    TorchComm.default()


def test_servers_have_equal_numbers_of_ranks() -> None:
    for rank, error in enumerate(outcomes("gloo", 3, on_unequal_servers)):
        said = f"LOCAL_WORLD_SIZE={'122'[rank]}: servers have [1, 2] ranks; all need the same number"
        assert isinstance(error, ValueError) and str(error) == said
