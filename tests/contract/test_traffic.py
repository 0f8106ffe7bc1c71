"""Bytes that every algorithm sends per rank and step, against the formulas (docs/algorithms.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from algorithms.base import Algorithm, Message, Op, When
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.components import build
from bagua_bench.emulate.optimizer import IdleOptimizer
from bagua_bench.engine.buckets import make_buckets
from tests.catalogue import HOME, resolved

SIZES = (2, 4, 8)
PARAMETERS = {"vgg16": 138_357_544, "bert_large": 334_094_338}
MIB = 2**20


class Silent(CountedComm):
    """Counts, and moves nothing."""

    def barrier(self) -> None: ...
    def _all_reduce(self, x: Tensor, op: Op) -> None: ...
    def _reduce(self, x: Tensor, dst: int, op: Op) -> None: ...
    def _broadcast(self, x: Tensor, src: int) -> None: ...
    def _all_to_all(self, x: Tensor, out: Tensor) -> None: ...
    def _all_gather(self, x: Tensor, out: Tensor) -> None: ...
    def _reduce_scatter(self, x: Tensor, op: Op) -> Tensor:
        return x[0]

    def _send_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None: ...
    def _subgroup(self, ranks: tuple[int, ...]) -> CountedComm:
        raise NotImplementedError

    def _twin(self, number: int) -> CountedComm:
        raise NotImplementedError


@cache
def model(task: str) -> nn.Module:
    """The task's model at the paper's size, without memory behind its parameters."""
    with torch.device("meta"):
        part = resolved(f"task={task}", "task.scale=paper").task
        built: nn.Module = build(part.target, part.options).model()
    for p in built.parameters():
        p.grad = torch.empty_like(p)
    return built


def sent(task: str, options: list[str], n: int, step: int) -> float:
    """Bytes of rank 0 in one step."""
    algo = resolved(f"task={task}", f"cluster.servers={n}", *options).algo
    algorithm: Algorithm = build(algo.target, algo.options)
    size = 2**63 if algorithm.one_bucket else 10 * MIB
    comm = Silent(0, n)
    params = list(model(task).parameters())[::-1]
    optimizer = algorithm.optimizer(IdleOptimizer(params))
    buckets = make_buckets(params, size, n, algorithm.gradients)
    algorithm.start(buckets, comm, optimizer)
    [turn] = algorithm.turns(step)
    for bucket in buckets:
        if turn.communicate is None:
            algorithm.prepare(bucket, step)
        (turn.communicate or algorithm.communicate)(bucket, comm, step)
    if turn.when is When.ASYNC:
        comm.all_reduce(torch.empty(1, dtype=torch.uint8), Op.MIN)  # whether all ranks want to stop
    return comm.sent["flat"]


Formula = Callable[[float, int, int], float]
ROWS: dict[str, tuple[list[str], int, Formula, str]] = {  # N parameters, n ranks, b buckets
    "gradient_allreduce": (["algo=gradient_allreduce"], 1, lambda N, n, b: 8 * (n - 1) / n * N, "8(n-1)/n N"),
    "bytegrad": (
        ["algo=bytegrad"],
        1,
        lambda N, n, b: 2 * (n - 1) / n * N + 64 * (n - 1) * b,
        "2(n-1)/n N + 64(n-1) b",
    ),
    "qadam, warm-up": (["algo=qadam"], 1, lambda N, n, b: 8 * (n - 1) / n * N, "8(n-1)/n N"),
    "qadam": (
        ["algo=qadam"],
        101,
        lambda N, n, b: 2 * (n - 1) / n * N / 8 + 8 * (n - 1) * b,
        "(n-1)/(4n) N + 8(n-1) b",
    ),
    "qadam codec=minmax_uint8": (
        ["algo=qadam", "algo.codec=minmax_uint8"],
        101,
        lambda N, n, b: 2 * (n - 1) / n * N + 64 * (n - 1) * b,
        "2(n-1)/n N + 64(n-1) b",
    ),
    "decentralized": (["algo=decentralized"], 1, lambda N, n, b: 4 * N, "4 N"),
    "decentralized peers=all": (
        ["algo=decentralized", "algo.peers=all"],
        1,
        lambda N, n, b: 8 * (n - 1) / n * N,
        "8(n-1)/n N",
    ),
    "low_precision_decentralized": (
        ["algo=low_precision_decentralized"],
        1,
        lambda N, n, b: 2 * (N + 32 * b),
        "2 (N + 32 b)",
    ),
    "async, per round": (["algo=async"], 1, lambda N, n, b: 8 * (n - 1) / n * N, "8(n-1)/n N"),
}


def buckets_of(task: str) -> int:
    """Last parameter first, a bucket ends when it has reached 10 MiB."""
    count, filled = 0, 0
    for p in reversed(list(model(task).parameters())):
        filled += p.numel() * 4
        if filled >= 10 * MIB:
            count, filled = count + 1, 0
    return count + bool(filled)


@pytest.mark.parametrize("task", PARAMETERS)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("n", SIZES)
def test_bytes_per_step_are_the_formula(task: str, row: str, n: int) -> None:
    options, step, formula, _ = ROWS[row]
    assert sent(task, options, n, step) == pytest.approx(formula(PARAMETERS[task], n, buckets_of(task)), rel=0.01)


def table() -> str:
    """MB per rank and step, as it stands in results/README.md."""
    lines = [
        "| algorithm | formula | " + " | ".join(f"{task} n={n}" for task in PARAMETERS for n in SIZES) + " |",
        "|---|---|" + "---:|" * (len(SIZES) * len(PARAMETERS)),
    ]
    for name, (options, step, _, formula) in ROWS.items():
        cells = [f"{sent(task, options, n, step) / 1e6:.1f}" for task in PARAMETERS for n in SIZES]
        lines.append(f"| {name} | {formula} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_documented_table_is_what_is_sent() -> None:
    text = table()
    print(text)
    assert text in (HOME / "results" / "README.md").read_text(), f"results/README.md should have\n{text}"
