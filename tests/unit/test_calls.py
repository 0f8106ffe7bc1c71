"""The calls for scripts of one's own: equal to torch.distributed's, and to formulas where torch has none."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.comm import calls
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.comm.torch_groups import TorchComm
from tests.catalogue import HOME
from tests.ranks import run

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
]
BITS, FLOATS = ("and", "or", "xor"), ("avg",)
everywhere = pytest.mark.parametrize(("kind", "size"), [("gloo", 2), ("gloo", 3), ("bagua_net", 2), ("bagua_net", 3)])


def data(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    """Small whole numbers, which all types add and multiply exactly; not contiguous."""
    generator = torch.Generator().manual_seed(rank)
    made = torch.randint(0, 2 if dtype is torch.bool else 4, (*shape[::-1],), generator=generator).to(dtype)
    return made.permute(*reversed(range(len(shape))))


def folded(parts: list[Tensor], op: str) -> Tensor:
    functions = {
        "sum": torch.add,
        "avg": torch.add,
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
    }
    found = reduce(functions[op], parts)
    return found / len(parts) if op == "avg" else found


def operations(dtype: torch.dtype) -> list[str]:
    if dtype is torch.bool:
        return [*BITS]
    if dtype.is_complex:
        return ["sum", "avg", "product"]
    return ["sum", "min", "max", "product", *(FLOATS if dtype.is_floating_point else BITS)]


def all_calls(comm: TorchComm) -> None:
    rank, size, last = comm.rank, comm.size, comm.size - 1
    for dtype in DTYPES:
        everyone = [data(r, dtype, 3, 4) for r in range(size)]
        wide = [data(r, dtype, size, 3, 2) for r in range(size)]
        mine, rows = everyone[rank], wide[rank]
        for op in operations(dtype):
            x = mine.clone()
            calls.all_reduce(x, op, comm)
            same(x, folded(everyone, op), f"all_reduce {op}")
            x = mine.clone()
            calls.reduce(x, last, op, comm)
            same(x, folded(everyone, op) if rank == last else mine, f"reduce {op}")
            same(calls.reduce_scatter(rows, op, comm), folded([r[rank] for r in wide], op), f"reduce_scatter {op}")
            several = [mine.clone(), rows.clone()]
            calls.all_reduce_coalesced(several, op, comm)
            same(several[1], folded(wide, op), f"all_reduce_coalesced {op}")
        x = mine.clone()
        calls.broadcast(x, last, comm)
        same(x, everyone[last], "broadcast")
        mixed = [mine.clone(), torch.full((5,), rank, dtype=torch.int32), rows.clone()]
        calls.broadcast_coalesced(mixed, last, comm)
        same(mixed[0], everyone[last], "broadcast_coalesced")
        assert mixed[1].tolist() == [last] * 5
        same(mixed[2], wide[last], "broadcast_coalesced")
        same(calls.all_gather(mine, comm), torch.stack(everyone), "all_gather")
        gathered = calls.gather(mine, last, comm)
        assert (gathered is None) == (rank != last)
        if gathered is not None:
            same(gathered, torch.stack(everyone), "gather")
        given = rows if rank == last else None
        same(calls.scatter(given, torch.empty(3, 2, dtype=dtype), last, comm), wide[last][rank], "scatter")
        same(calls.all_to_all(rows, comm), torch.stack([r[rank] for r in wide]), "all_to_all")
        parts = [data(r, dtype, sum(range(size)), 2).split([(r + k) % size for k in range(size)]) for r in range(size)]
        counts = [(rank + k) % size for k in range(size)]
        for source, part in enumerate(calls.all_to_all_v(data(rank, dtype, sum(counts), 2), counts, comm)):
            same(part, parts[source][rank], "all_to_all_v")
        if rank < 2:
            x = torch.empty(4, 3, dtype=dtype).t()
            calls.send(mine, 1, comm) if rank == 0 else calls.recv(x, 0, comm)
            same(x if rank else everyone[0], everyone[0], "send")
    said = calls.broadcast_object({"rank": rank, "text": "é" * rank}, last, comm)
    assert said == {"rank": last, "text": "é" * last}
    if rank != 1:
        pair = calls.new_group([0, last] if last != 1 else [0], comm)
        x = torch.ones(2)
        calls.all_reduce(x, comm=pair)
        assert x.tolist() == [pair.size] * 2
    calls.barrier(comm)


def same(x: Tensor, y: Tensor, what: str) -> None:
    assert x.dtype is y.dtype and x.shape == y.shape, (what, x.dtype, x.shape, y.dtype, y.shape)
    torch.testing.assert_close(
        x, y, rtol=1e-3 if x.dtype in (torch.float16, torch.bfloat16) else 1e-6, atol=0, msg=what
    )


@everywhere
def test_every_call_with_every_type(kind: str, size: int) -> None:
    run(kind, size, all_calls)


def beside_torch(comm: TorchComm) -> None:
    """torch's own call, on the same group, with the types that gloo knows."""
    group, size, rank = comm.group, comm.size, comm.rank
    names = {"sum": "SUM", "min": "MIN", "max": "MAX", "product": "PRODUCT", "and": "BAND", "or": "BOR", "xor": "BXOR"}
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8):
        x = data(rank, dtype, 3, 4).contiguous()
        rows = data(rank, dtype, size, 5).contiguous()
        for op, name in names.items():
            if dtype.is_floating_point and op in BITS:
                continue
            ours, theirs = x.clone(), x.clone()
            calls.all_reduce(ours, op, comm)
            dist.all_reduce(theirs, getattr(dist.ReduceOp, name), group)
            assert torch.equal(ours, theirs), (dtype, op)
        ours, theirs = x.clone(), x.clone()
        calls.broadcast(ours, 1, comm)
        dist.broadcast(theirs, group=group, group_src=1)
        assert torch.equal(ours, theirs)
        listed = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(listed, x, group)
        assert torch.equal(calls.all_gather(x, comm), torch.stack(listed))
        theirs = torch.empty_like(rows)
        dist.all_to_all_single(theirs, rows, group=group)
        assert torch.equal(calls.all_to_all(rows, comm), theirs)
        found = calls.gather(x, 1, comm)
        dist.gather(x, listed if rank == 1 else None, group=group, group_dst=1)
        assert found is None or torch.equal(found, torch.stack(listed))
        row = torch.empty_like(rows[0])
        dist.scatter(row, [*rows] if rank == 1 else None, group=group, group_src=1)
        assert torch.equal(calls.scatter(rows if rank == 1 else None, row, 1, comm), row)


@everywhere
def test_torch_s_counterparts_on_the_same_group(kind: str, size: int) -> None:
    run(kind, size, beside_torch)


def gradients(comm: TorchComm) -> None:
    for op in ("sum", "avg"):
        x = torch.arange(4.0, dtype=torch.float64).add(comm.rank).requires_grad_()
        y = calls.all_reduced(x, op, comm)
        ((comm.rank + 1) * y.square()).sum().backward()
        everyone = sum(torch.arange(4.0, dtype=torch.float64) + r for r in range(comm.size))
        value = everyone / (comm.size if op == "avg" else 1)
        weights = sum(r + 1 for r in range(comm.size))  # of all ranks' losses
        expected = 2 * value * weights / (comm.size if op == "avg" else 1)
        torch.testing.assert_close(y.detach(), value)
        torch.testing.assert_close(x.grad, expected)


@everywhere
def test_the_gradient_of_a_sum_over_ranks(kind: str, size: int) -> None:
    run(kind, size, gradients)


def refused(comm: TorchComm) -> list[str]:
    found = []
    for call in (
        lambda: calls.all_reduce(torch.ones(2), "median", comm),
        lambda: calls.all_reduce(torch.ones(2), "xor", comm),
        lambda: calls.all_reduce(torch.ones(2, dtype=torch.int32), "avg", comm),
        lambda: calls.all_reduce(torch.ones(2, dtype=torch.bool), "sum", comm),
        lambda: calls.all_to_all(torch.ones(5, 2), comm),
        lambda: calls.all_to_all_v(torch.ones(5), [1, 1], comm),
        lambda: calls.all_reduce_coalesced([torch.ones(1), torch.ones(1, dtype=torch.int32)], "sum", comm),
        lambda: calls.scatter(torch.ones(2, 2), torch.ones(3), comm.rank, comm),
        lambda: calls.all_reduced(torch.ones(2), "max", comm),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        found.append(str(caught.value))
    return found


def test_what_cannot_be_is_one_line() -> None:
    assert run("gloo", 2, refused)[1] == [
        "op=median: allowed: sum, avg, min, max, product, and, or, xor",
        "op=xor: not of torch.float32",
        "op=avg: not of torch.int32",
        "op=sum: not of torch.bool; allowed: and, or, xor",
        "all_to_all: shape (5, 2); expected (2, ...), a row for each rank",
        "all_to_all_v: counts=[1, 1]: 2 numbers that sum up to 5",
        "all_reduce_coalesced: types ['torch.float32', 'torch.int32']; expected one",
        "scatter: rows=torch.float32 (2, 2); expected torch.float32 (2, 3)",
        "all_reduced: op=max: allowed: sum, avg",
    ]


def snippet(comm: TorchComm) -> Any:
    page = (HOME / "docs" / "communication.md").read_text()
    [code] = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", page, re.S)
    exec(compile(re.sub(r"^dist\.init_process_group.*$", "", code, flags=re.M), "communication.md", "exec"), {})


def test_the_pages_snippet_runs() -> None:
    run("gloo", 2, snippet)


def test_every_call_is_on_the_page() -> None:
    page = (HOME / "docs" / "communication.md").read_text()
    public = [name for name, made in vars(calls).items() if getattr(made, "__module__", "") == calls.__name__]
    assert [name for name in public if name[0] != "_" and f"`{name}(" not in page] == []


def from_an_expanded_tensor(comm: TorchComm) -> list[float]:
    """Senders only read."""
    one, got = torch.tensor(3.0).expand(4), torch.zeros(4)
    if comm.rank == 0:
        calls.send(one, 1, comm)
        calls.broadcast(one, 0, comm)
    else:
        calls.recv(got, 0, comm)
        calls.broadcast(got.mul_(-1), 0, comm)
    rows = calls.gather(one, 0, comm)
    assert rows is None or rows.tolist() == [[3.0] * 4] * 2
    return (one if comm.rank == 0 else got).tolist()


def test_what_is_sent_may_be_expanded() -> None:
    assert run("gloo", 2, from_an_expanded_tensor) == [[3.0] * 4] * 2


def test_entries_need_a_dimension() -> None:
    with pytest.raises(ValueError, match=r"all_to_all_v: shape \(\)"):
        calls.all_to_all_v(torch.tensor(1.0), [1], ThreadComm.world(1)[0])
