"""Models, optimizers and ranks that cannot be trained correctly are refused in one line that names what is wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.bytegrad import ByteGrad
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.engine.engine import Engine
from bagua_bench.engine.hooks import ForwardHook
from tests.habits import alone, data, loss, network, sgd
from tests.ranks import outcomes, run


def refused(net: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        Engine(net, optimizer or sgd(net), GradientAllReduce(), alone())
    assert "\n" not in str(caught.value)
    assert not any(isinstance(hook, ForwardHook) for hook in net._forward_pre_hooks.values()), "a hook was left behind"
    return str(caught.value)


def holding(**params: Any) -> nn.Module:
    net = nn.Module()
    for name, value in params.items():
        net.register_parameter(name, value if isinstance(value, nn.Parameter) else nn.Parameter(value))
    return net


def test_models_that_cannot_be_trained_are_refused_by_name() -> None:
    assert "no trainable parameters" in refused(network().requires_grad_(False), sgd(network()))
    assert refused(holding(w=torch.ones(3, dtype=torch.complex64))).startswith("w: torch.complex64")
    assert refused(holding(w=torch.ones(1).expand(4))).startswith("w: elements share memory")
    assert refused(holding(w=torch.arange(6.0).as_strided((2, 3), (1, 1)))).startswith("w: elements share memory")
    lazy = nn.LazyLinear(3)
    assert refused(lazy, sgd(network())).startswith("weight: it has no shape yet")
    shared = torch.ones(6)
    assert refused(holding(a=shared, b=shared[2:])) == (
        "b: it shares memory with a; to tie them use one Parameter for both, or clone() one"
    )
    buffered = holding(a=torch.ones(3))
    buffered.register_buffer("copy", buffered.a.data)
    assert "shares memory with" in refused(buffered)


def test_optimizers_that_cannot_be_used_are_refused() -> None:
    net = network()
    assert "optimizer=LBFGS: it needs a closure" in refused(net, torch.optim.LBFGS(net.parameters()))
    stranger = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(2, 7))], lr=0.1)
    assert "shape (2, 7) that is not in the model" in refused(net, stranger)


def test_a_closure_is_refused() -> None:
    net = network()
    with Engine(net, sgd(net), GradientAllReduce(), alone()) as engine, pytest.raises(ValueError, match="closure"):
        engine.step(lambda: 0.0)


def test_calling_the_optimizer_instead_of_the_engine_is_an_error() -> None:
    for make in (GradientAllReduce, Decentralized):
        net = network()
        optimizer = sgd(net)
        comm = ThreadComm.world(1)[0]
        algorithm = make() if make is GradientAllReduce else Decentralized(peers="all")
        with Engine(net, optimizer, algorithm, comm):
            loss(net, data(0, 0)).backward()
            with pytest.raises(RuntimeError, match=r"call engine\.step\(\) instead of optimizer\.step\(\)"):
                optimizer.step()
        optimizer.step()  # the engine is gone


def sliced(comm: CountedComm) -> tuple[Tensor, Tensor]:
    """Columns of one matrix, as parameters: not dense, but each for itself."""
    whole = torch.arange(12.0).view(3, 4)
    net = holding(a=whole[:, :3], b=whole[:, 3:], c=torch.zeros(()), d=torch.zeros(0, 2))
    with Engine(net, sgd(net, 1.0), GradientAllReduce(), comm) as engine:
        start = torch.cat([net.a, net.b], 1).detach().clone()
        scale = 1.0 + comm.rank
        ((net.a.sum() + net.b.sum() + net.c) * scale + net.d.sum()).backward()
        engine.step()
        return start, torch.cat([net.a, net.b], 1).detach()


def test_slices_scalars_and_empty_parameters() -> None:
    for start, end in run("threads", 2, sliced):
        assert torch.equal(start, torch.arange(12.0).view(3, 4))
        assert torch.equal(end, start - 1.5)


def unlike(comm: CountedComm, how: str) -> None:
    net: nn.Module = nn.Linear(6, 4)
    if comm.rank == 1:
        net = {"shape": nn.Linear(4, 6), "name": nn.Sequential(nn.Linear(6, 4)), "more": nn.Bilinear(3, 2, 4)}.get(
            how, net
        )
        net = net.double() if how == "dtype" else net
        if how == "frozen":
            net.weight.requires_grad_(False)
    size = 100 if how == "bucket" and comm.rank else 10**6
    Engine(
        net, sgd(net), ByteGrad() if how == "algorithm" and comm.rank else GradientAllReduce(), comm, bucket_size=size
    )


@pytest.mark.parametrize("kind", ["threads", "gloo"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", r"rank 0 has weight \(4, 6\).*rank 1 has weight \(6, 4\)"),
        ("name", r"rank 0 has weight .*rank 1 has 0\.weight"),
        ("more", r"rank 0 has weight \(4, 6\).*, rank 1 has weight \(4, 3, 2\)"),
        ("dtype", "float32.*float64"),
        ("frozen", "trainable.*frozen"),
        ("bucket", "bucket_size=1000000, rank 1 has bucket_size=100"),
        ("algorithm", "rank 0 has GradientAllReduce.., rank 1 has ByteGrad"),
    ],
)
def test_ranks_with_different_models_are_refused(how: str, message: str, kind: str) -> None:
    if kind == "gloo" and how not in ("shape", "more"):
        pytest.skip("the same code over threads")
    errors = outcomes(kind, 2, unlike, how)
    if kind == "threads":  # the first that raises breaks the barrier of the others
        errors = [error for error in errors if isinstance(error, ValueError)]
        assert errors
    for error in errors:
        assert isinstance(error, ValueError)
        assert re.search(message, str(error)), error
