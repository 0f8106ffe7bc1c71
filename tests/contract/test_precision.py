"""run.precision=bf16: forward and loss under autocast, everything that is communicated float32."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm import CountedComm
from bagua_bench.config import ConfigError
from bagua_bench.training.engine import Engine
from bagua_bench.training.loop import Loop
from bagua_bench.validate import validate
from tasks.vgg16 import VGG16
from tests.catalogue import resolved
from tests.ranks import run


def losses(comm: CountedComm, precision: str) -> tuple[list[float], set[str], Tensor]:
    """Losses of four steps, dtypes of the linear layers' outputs, and the flat weights."""
    torch.manual_seed(3)
    task = VGG16(scale="tiny", batch=4, dropout=0)
    model, seen = task.model(), set[str]()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, inputs, out: seen.add(str(out.dtype)))
    with Engine(model, task.optimizer(model), GradientAllReduce(), comm) as engine:
        loop = Loop(engine, task, torch.device("cpu"), 1, lambda *args: None, precision=precision)
        assert all(bucket.grad.dtype == torch.float32 for bucket in engine.buckets)
        _, values = loop.take(islice(task.batches(comm.rank, comm.size, 0), 4), 4, "timed")
        return values, seen, torch.cat([bucket.weight for bucket in engine.buckets])


def test_bf16_computes_in_bfloat16_and_follows_float32() -> None:
    exact, half = (run("gloo", 2, losses, precision) for precision in ("fp32", "bf16"))
    for (expected, single, _), (got, seen, weights) in zip(exact, half, strict=True):
        assert single == {"torch.float32"}
        assert seen == {"torch.bfloat16"}
        assert got == pytest.approx(expected, rel=0.05)
        assert got != expected
        assert weights.dtype == torch.float32
        assert torch.isfinite(weights).all()
    assert torch.equal(half[0][2], half[1][2]), "replicas differ"


@pytest.mark.parametrize("mode", ["emulate", "simulate"])
def test_machines_that_compute_nothing_have_no_precision(mode: str) -> None:
    cell: dict[str, Any] = resolved(f"mode={mode}", "run.precision=bf16")
    with pytest.raises(ConfigError, match=r"run\.precision=bf16"):
        validate(cell)
