"""The parameter server: what it computes, in which order it sends, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bagua_bench.comm import CommError, CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.peers.parameter_server import ParameterServer
from bagua_bench.peers.push_pull import Shares, parts_of
from tests.catalogue import resolved
from tests.ranks import outcomes, run

SIZES = (5, 100, 1, 64, 7)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(1, 400), st.integers(1, 5))
def test_partitions_are_all_of_the_gradients_and_evenly_kept(sizes: list[int], nbytes: int, owners: int) -> None:
    parts = parts_of([torch.empty(size) for size in sizes], nbytes, range(3, 3 + owners))
    assert [part.number for part in parts] == list(range(len(parts)))
    for position, size in enumerate(sizes):
        own = [(part.begin, part.end) for part in parts if part.position == position]
        assert [i for begin, end in own for i in range(begin, end)] == list(range(size))
    most = max(part.end - part.begin for part in parts)
    assert most <= max(1, nbytes // 4)
    held = [sum(part.end - part.begin for part in parts if part.owner == owner) for owner in range(3, 3 + owners)]
    assert max(held) - min(held) <= most


def value(rank: int, step: int, position: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 * rank + 100 * step + position)
    return torch.randn(SIZES[position], generator=generator)


def exchanged(comm: CountedComm, nbytes: int, credit: int, own: int) -> tuple[list[list[Tensor]], float]:
    """What every gradient becomes, in five steps in which each rank has its gradients in an order of its own.

    The last `own` ranks only serve.
    """
    assert isinstance(comm, TorchComm)
    like, workers = [torch.empty(size) for size in SIZES], comm.size - own
    servers = range(workers if own else 0, comm.size)
    shares = Shares(comm.another(), parts_of(like, nbytes, servers), like, credit, workers, workers, servers)
    found = []
    for step in range(5):
        if comm.rank >= workers:
            shares.wait()
            continue
        gradients = [value(comm.rank, step, position) for position in range(len(SIZES))]
        for position in torch.randperm(len(SIZES), generator=torch.Generator().manual_seed(comm.rank + step)).tolist():
            time.sleep(0.001 * comm.rank)
            shares.push(position, gradients[position])
        shares.wait()
        found.append(gradients)
    shares.close(failed=False)
    return found, shares.sent


@pytest.mark.parametrize(
    ("size", "nbytes", "credit", "own"),
    [(2, 2**22, 4, 0), (3, 40, 1, 0), (3, 40, 4, 0), (4, 4, 2, 0), (2, 40, 1, 1), (4, 40, 2, 1), (4, 4, 2, 2)],
)
def test_all_have_the_mean_in_the_order_of_ranks(size: int, nbytes: int, credit: int, own: int) -> None:
    results = run("gloo", size, exchanged, nbytes, credit, own)
    workers = size - own
    for found, _ in results[:workers]:
        assert len(found) == 5
        for step, gradients in enumerate(found):
            for position, got in enumerate(gradients):
                total = value(0, step, position)
                for rank in range(1, workers):
                    total = total + value(rank, step, position)
                assert torch.equal(got, total / workers)
    parts, others = sum(-(-n // max(1, nbytes // 4)) for n in SIZES), workers if own else workers - 1
    everything = 5 * (2 * others * 4 * sum(SIZES) + 8 * others * parts)
    assert sum(sent for _, sent in results) == everything
    pushed = 5 * (4 * sum(SIZES) + 8 * parts)
    assert not own or [sent for _, sent in results[:workers]] == [pushed] * workers


class Seen(Shares):
    """Notes what it sends: tags with their first elements."""

    def _post(self, x: Tensor, rank: int, tag: int) -> Any:
        self.__dict__.setdefault("seen", []).append((tag, float(x[0])))
        return super()._post(x, rank, tag)


def ordered(comm: CountedComm, credit: int) -> tuple[list[int], list[int]]:
    """Numbers of the partitions that this rank has pushed, in this order, and those that it would be pushed."""
    assert isinstance(comm, TorchComm)
    like = [torch.empty(1) for _ in range(12)]
    parts = parts_of(like, 4, range(comm.size))
    shares = Seen(comm.another(), parts, like, credit, comm.size, comm.size, range(comm.size))
    with shares._lock:  # so that nothing is sent before all are there
        for position in reversed(range(12)):
            shares.push(position, torch.ones(1))
    shares.wait()
    shares.close(failed=False)
    pushed = [int(first) for tag, first in shares.__dict__["seen"] if tag == 0 and first >= 0]
    return pushed, [part.number for part in parts if part.owner != comm.rank]


@pytest.mark.parametrize("credit", [1, 3])
def test_of_those_that_wait_the_first_layer_goes_first(credit: int) -> None:
    for pushed, front_first in run("gloo", 2, ordered, credit):
        assert len(pushed) == 6 and pushed == front_first


def trained(comm: CountedComm, own: int) -> tuple[Tensor, dict[str, float], bool]:
    """Weights after three steps of one layer that is used and one that is not, and what was sent in the last one."""
    torch.manual_seed(comm.rank)  # rank 0's weights become everybody's
    model = torch.nn.ModuleList([torch.nn.Linear(8, 4), torch.nn.Linear(3, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ParameterServer("64B", 2, own).attach(model, optimizer, comm) as trainer:
        for step in range(3):
            before = trainer.sent()
            x = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * comm.rank + step))
            if trainer.trains:
                model[0](x).square().mean().backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        sent = {level: number - before[level] for level, number in trainer.sent().items()}
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("parameter server")]
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sent, names == []


@pytest.mark.parametrize(
    ("size", "per_server", "own"),
    [(4, 2, 0), (2, 2, 0), (3, 1, 0), (1, 1, 0), (3, 1, 1), (2, 1, 1), (4, 2, 1), (4, 1, 2)],
)
def test_ranks_of_a_machine_push_as_one(size: int, per_server: int, own: int) -> None:
    results = run("gloo", size, trained, own, per_server=per_server)
    workers = size - own * per_server
    torch.manual_seed(0)
    alone = torch.nn.ModuleList([torch.nn.Linear(8, 4), torch.nn.Linear(3, 3)])
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        xs = [torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * rank + step)) for rank in range(workers)]
        alone[0](torch.cat(xs)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for rank, (weights, sent, ended) in enumerate(results):
        if rank < workers:
            torch.testing.assert_close(weights, torch.cat([p.detach().flatten() for p in alone.parameters()]))
            assert torch.equal(weights, results[0][0])
        assert ended
        assert (sent["flat"] > 0) == (size > 1 and per_server == 1)
    between = [sent["inter"] > 0 for _, sent, _ in results]
    assert between == [size > per_server > 1 and rank % per_server == 0 for rank in range(size)]


def dies(comm: CountedComm, victim: int, own: int, death: Path) -> float:
    """Seconds from the death of the victim to the error of this rank."""
    model, peer = torch.nn.Linear(64, 64), ParameterServer("1KiB", own_machines=own)
    attached = peer.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), comm)
    with pytest.raises(CommError), attached as trainer:
        for step in range(500):
            if comm.rank == victim and step == 20:
                death.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            if trainer.trains:
                model(torch.ones(1, 64)).sum().backward()
            trainer.synchronize()
            trainer.optimize()
    return time.monotonic() - float(death.read_text())


@pytest.mark.parametrize(("victim", "own"), [(0, 0), (2, 0), (0, 1), (2, 1)])
def test_who_loses_a_rank_says_so_at_once(victim: int, own: int, tmp_path: Path) -> None:
    results = outcomes("gloo", 3, dies, victim, own, tmp_path / "death", timeout=40.0)
    others = [other for rank, other in enumerate(results) if rank != victim]
    assert all(isinstance(seconds, float) for seconds in others), results
    assert max(others) < 40, "they waited for the time-out"


def late(comm: CountedComm) -> None:
    model = torch.nn.Linear(64, 64)
    with ParameterServer().attach(model, torch.optim.SGD(model.parameters(), lr=0.1), comm) as trainer:
        model(torch.ones(1, 64)).sum().backward()
        if comm.rank == 1:
            time.sleep(8)
        trainer.synchronize()


def test_a_server_waits_while_its_worker_computes() -> None:
    """Rank 1 has pushed in its backward pass, and its server goes on beside it, for longer than the time-out."""
    assert outcomes("gloo", 2, late, timeout=3.0) == [None, None]


def silent(comm: CountedComm) -> None:
    model = torch.nn.Linear(64, 64)
    with ParameterServer().attach(model, torch.optim.SGD(model.parameters(), lr=0.1), comm) as trainer:
        if comm.rank == 1:
            time.sleep(12)
            return
        model(torch.ones(1, 64)).sum().backward()
        trainer.synchronize()


def test_a_rank_that_pushes_nothing_is_waited_for_until_the_time_out() -> None:
    first, _ = outcomes("gloo", 2, silent, timeout=3.0)
    assert isinstance(first, CommError)


def test_it_needs_tags() -> None:
    message = "transport=bagua_net: algo=parameter_server needs messages that are matched by their tags; allowed: gloo"
    with pytest.raises(ConfigError, match=message):
        validate(resolved("algo=parameter_server", "transport=bagua_net"))
    validate(resolved("algo=parameter_server", "transport=bagua_net", "mode=simulate", "cluster=bagua_paper"))


@pytest.mark.parametrize(
    ("key", "message"), [("credit=0", "must be at least 1"), ("credit=two", "expected an integer")]
)
def test_bad_options_are_refused(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"algo.{key}: {message}"):
        validate(resolved("algo=parameter_server", f"algo.{key}"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["cluster.servers=2", "algo.own_machines=2"], "cluster.servers=2: 2 of them only serve"),
        (["cluster.servers=2", "algo.own_machines=-1"], "algo.own_machines=-1: must be at least 0"),
        (["mode=simulate", "algo.own_machines=1"], "algo.own_machines=1: mode=simulate does not know what it does"),
        (["task=resnet50", "task.sync_bn=true", "algo.own_machines=1"], "task.sync_bn=true: all ranks meet"),
    ],
)
def test_machines_that_only_serve_leave_some_that_train(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(resolved("algo=parameter_server", *given))
