"""ByteGrad's options; its exchange is tested with the primitives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algorithms.bytegrad import ByteGrad
from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.catalogue import constructor
from tests.linear import Linear
from tests.ranks import run
from tests.unit.test_primitives import quantised

G = torch.randn(16, generator=torch.Generator().manual_seed(3))


def moved(comm: CountedComm, options: dict[str, Any]) -> Tensor:
    """Where one step of length 1 along -G ends, from 0."""
    model = Linear(16)
    model.x.data.zero_()
    with Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), ByteGrad(**options), comm) as engine:
        model(G).backward()
        engine.step()
    return -model.x.detach()


def test_the_released_code_quantises_twice_even_alone() -> None:
    options = constructor("bytegrad_released")
    twice = quantised(quantised(G[None]))[0]
    assert torch.equal(run("threads", 1, moved, options)[0], twice)
    assert torch.equal(run("threads", 1, moved, {})[0], G) and not torch.equal(G, twice)


def test_sum_instead_of_mean() -> None:
    mean, total = (run("threads", 2, moved, {"average": average})[0] for average in (True, False))
    torch.testing.assert_close(total, 2 * mean, rtol=0, atol=2 * float(G.max() - G.min()) / 255)


def test_on_one_server_it_compresses_between_its_ranks() -> None:
    flat = run("threads", 2, moved, {"hierarchical": False})
    one_server = run("threads", 2, moved, {}, per_server=2)
    assert torch.equal(one_server[0], flat[0]) and not torch.equal(one_server[0], G)
