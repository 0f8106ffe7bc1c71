"""Communication among ranks in the manner of MPI, for scripts of your own (docs/communication.md).

Calls are collective unless they say otherwise: all ranks of the communicator make them, in the same order. Tensors may
have any type, shape and strides; they are equal in type and shape on all ranks. `comm` is the communicator, by default
all ranks of the job. `op`: sum, avg, min, max, product, and, or, xor. ValueError, one line, for what cannot be;
`bagua_bench.comm.CommError` when a peer died or the time-out passed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce as fold
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from algorithms.base import Op
from bagua_bench.comm.counted import CountedComm
from bagua_bench.comm.torch_groups import TorchComm

_SENT: dict[str, Op] = {op.value: op for op in Op}
"""Operations that the communicator itself has."""
_FOLDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}
"""All operations, for types that no transport reduces: everyone's tensors are gathered, and reduced in rank order."""
_REDUCED = (torch.float32, torch.float64, torch.int32, torch.int64)
_default: tuple[object, TorchComm] | None = None


def default() -> TorchComm:
    """The communicator of all ranks of the job, made at the first call; collective there.

    RuntimeError if torch.distributed is not initialised.
    """
    global _default
    world = dist.group.WORLD
    if _default is None or _default[0] is not world:
        _default = world, TorchComm.default()
    return _default[1]


def from_torch_group(group: dist.ProcessGroup, timeout: float = 1800.0) -> TorchComm:
    """The communicator of a process group. timeout: seconds, for groups that are made of it."""
    return TorchComm(group, timeout)


def new_group(ranks: Sequence[int], comm: CountedComm | None = None) -> CountedComm:
    """The communicator of some of the ranks, ascending; these alone make the call."""
    return _of(comm).subgroup(ranks)


def barrier(comm: CountedComm | None = None) -> None:
    """Return when every rank has made the call."""
    _of(comm).barrier()


# -- from one rank ---------------------------------------------------------------------------------------------------


def send(x: Tensor, dst: int, comm: CountedComm | None = None) -> None:
    """Send x to rank `dst`, which receives it; a call of these two alone. Return when x may be changed again."""
    _of(comm).send_receive([(dst, _as_bytes(x.detach()))], [])


def recv(x: Tensor, src: int, comm: CountedComm | None = None) -> None:
    """Overwrite x with what rank `src` sends; a call of these two alone."""
    with _bytes(x) as data:
        _of(comm).send_receive([], [(src, data)])


def broadcast(x: Tensor, src: int = 0, comm: CountedComm | None = None) -> None:
    """Overwrite x with rank src's x."""
    comm = _of(comm)
    if comm.rank == src:
        comm.broadcast(_as_bytes(x.detach()), src)
    else:
        with _bytes(x) as data:
            comm.broadcast(data, src)


def broadcast_coalesced(tensors: Sequence[Tensor], src: int = 0, comm: CountedComm | None = None) -> None:
    """Overwrite each tensor with rank src's, all in one message."""
    comm, flat = _of(comm), [x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors]
    joined = torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8, device=comm.device)
    comm.broadcast(joined, src)
    for x, part in zip(tensors, joined.split([len(each) for each in flat]), strict=True):
        x.detach().copy_(part.clone().view(x.dtype).view(x.shape))


def broadcast_object(thing: Any = None, src: int = 0, comm: CountedComm | None = None) -> Any:
    """Return rank src's object, which can be pickled; the others' is not looked at."""
    comm = _of(comm)
    data = torch.frombuffer(bytearray(pickle.dumps(thing if comm.rank == src else None)), dtype=torch.uint8)
    length = torch.tensor([len(data)], device=comm.device)
    comm.broadcast(length, src)
    data = data.to(comm.device) if comm.rank == src else length.new_empty(int(length), dtype=torch.uint8)
    comm.broadcast(data, src)
    return thing if comm.rank == src else pickle.loads(data.cpu().numpy().tobytes())


def scatter(rows: Tensor | None, like: Tensor, src: int = 0, comm: CountedComm | None = None) -> Tensor:
    """Return row r of rank src's `rows` (size, ...) on rank r; elsewhere rows is None.

    like: a tensor with the type and the shape of a row.
    """
    comm = _of(comm)
    if comm.rank == src:
        if rows is None or rows.shape != (comm.size, *like.shape) or rows.dtype is not like.dtype:
            found = None if rows is None else f"{rows.dtype} {tuple(rows.shape)}"
            raise ValueError(f"scatter: rows={found}; expected {like.dtype} {(comm.size, *like.shape)}")
        others = [rank for rank in range(comm.size) if rank != src]
        parts = [_as_bytes(row) for row in rows.detach()]
        comm.send_receive([(rank, parts[rank]) for rank in others], [])
        return rows[src].detach().clone()
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    comm.send_receive([], [(src, _as_bytes(out))])
    return out


# -- to one rank -----------------------------------------------------------------------------------------------------


def reduce(x: Tensor, dst: int = 0, op: str = "sum", comm: CountedComm | None = None) -> None:
    """Reduce x into rank dst's x; those of the others stay as they are."""
    _check(x, op)
    comm, data = _of(comm), x.detach().clone(memory_format=torch.contiguous_format)
    if op in _SENT and x.dtype in _REDUCED:
        comm.reduce(data.view(-1), dst, _SENT[op])
    else:
        all_reduce(data, op, comm)
    if comm.rank == dst:
        x.detach().copy_(data)


def gather(x: Tensor, dst: int = 0, comm: CountedComm | None = None) -> Tensor | None:
    """Return everyone's x (size, ...) in the order of ranks on rank dst, None elsewhere."""
    comm = _of(comm)
    if comm.rank != dst:
        send(x, dst, comm)
        return None
    out = x.detach().new_empty((comm.size, *x.shape))
    out[dst] = x.detach()
    others = [rank for rank in range(comm.size) if rank != dst]
    comm.send_receive([], [(rank, _as_bytes(out[rank])) for rank in others])
    return out


# -- to all ranks ----------------------------------------------------------------------------------------------------


def all_reduce(x: Tensor, op: str = "sum", comm: CountedComm | None = None) -> None:
    """Reduce x over all ranks, in place."""
    _check(x, op)
    comm, data = _of(comm), x.detach()
    if op in _SENT and x.dtype in _REDUCED:
        flat = data.contiguous().view(-1)
        comm.all_reduce(flat, _SENT[op])
        reduced = flat.view(x.shape)
    else:
        rows = all_gather(data, comm)
        reduced = fold(_FOLDED["sum" if op == "avg" else op], rows.unbind())
        reduced = reduced / comm.size if op == "avg" else reduced
    if reduced.data_ptr() != data.data_ptr() or not data.is_contiguous():
        data.copy_(reduced)


def all_reduce_coalesced(tensors: Sequence[Tensor], op: str = "sum", comm: CountedComm | None = None) -> None:
    """Reduce each of the tensors, all of one type, over all ranks, in place, in one message."""
    if len({x.dtype for x in tensors}) > 1:
        raise ValueError(f"all_reduce_coalesced: types {sorted({str(x.dtype) for x in tensors})}; expected one")
    if not tensors:
        return
    joined = torch.cat([x.detach().reshape(-1) for x in tensors])
    all_reduce(joined, op, comm)
    for x, part in zip(tensors, joined.split([x.numel() for x in tensors]), strict=True):
        x.detach().copy_(part.view(x.shape))


def all_reduced(x: Tensor, op: str = "sum", comm: CountedComm | None = None) -> Tensor:
    """Return the sum or the mean over all ranks. Its gradient is that of the sum of all ranks' losses."""
    if op not in ("sum", "avg"):
        raise ValueError(f"all_reduced: op={op}: allowed: sum, avg")
    result: Tensor = _AllReduced.apply(x, op, _of(comm))  # type: ignore[no-untyped-call]
    return result


class _AllReduced(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: str, comm: CountedComm) -> Tensor:
        ctx.op, ctx.comm = op, comm
        out = x.detach().clone(memory_format=torch.contiguous_format)
        all_reduce(out, op, comm)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return all_reduced(gradient, ctx.op, ctx.comm), None, None


def all_gather(x: Tensor, comm: CountedComm | None = None) -> Tensor:
    """Return everyone's x as (size, ...), in the order of ranks."""
    comm = _of(comm)
    rows = comm.all_gather(_as_bytes(x.detach()))
    return rows.view(x.dtype).view(comm.size, *x.shape)


def reduce_scatter(rows: Tensor, op: str = "sum", comm: CountedComm | None = None) -> Tensor:
    """Reduce everyone's rows (size, ...); return row `rank` of the result."""
    comm = _rows("reduce_scatter", rows, comm)
    _check(rows, op)
    data = rows.detach().contiguous()
    if op in _SENT and rows.dtype in _REDUCED:
        return comm.reduce_scatter(data, _SENT[op])
    own = all_to_all(data, comm)
    reduced = fold(_FOLDED["sum" if op == "avg" else op], own.unbind())
    return reduced / comm.size if op == "avg" else reduced


def all_to_all(rows: Tensor, comm: CountedComm | None = None) -> Tensor:
    """Send row r of `rows` (size, ...) to rank r; return the rows received, in the order of their sources."""
    comm = _rows("all_to_all", rows, comm)
    data = _as_bytes(rows.detach()).view(comm.size, -1)
    return comm.all_to_all(data).view(rows.dtype).view(rows.shape)


def all_to_all_v(x: Tensor, counts: Sequence[int], comm: CountedComm | None = None) -> list[Tensor]:
    """Send the next `counts[r]` entries of x (entries, ...) to rank r; return what each rank has sent.

    Entries have the same type and shape on all ranks, their numbers may differ.
    """
    comm = _of(comm)
    if not x.dim():
        raise ValueError("all_to_all_v: shape (); expected (entries, ...)")
    if len(counts) != comm.size or sum(counts) != len(x) or min(counts) < 0:
        raise ValueError(f"all_to_all_v: counts={list(counts)}: {comm.size} numbers that sum up to {len(x)}")
    asked = all_to_all(torch.tensor(counts, device=x.device), comm).tolist()
    parts = x.detach().split(list(counts))
    out = [x.new_empty((count, *x.shape[1:])) for count in asked]
    out[comm.rank].copy_(parts[comm.rank])
    others = [(comm.rank + k) % comm.size for k in range(1, comm.size)]
    comm.send_receive(
        [(rank, _as_bytes(parts[rank])) for rank in others if counts[rank]],
        [(rank, _as_bytes(out[rank])) for rank in others if asked[rank]],
    )
    return out


# -- tensors ---------------------------------------------------------------------------------------------------------


def _of(comm: CountedComm | None) -> CountedComm:
    return default() if comm is None else comm


def _rows(name: str, rows: Tensor, comm: CountedComm | None) -> CountedComm:
    comm = _of(comm)
    if not rows.dim() or len(rows) != comm.size:
        raise ValueError(f"{name}: shape {tuple(rows.shape)}; expected ({comm.size}, ...), a row for each rank")
    return comm


def _check(x: Tensor, op: str) -> None:
    if op not in {*_SENT, *_FOLDED}:
        raise ValueError(f"op={op}: allowed: {', '.join(dict.fromkeys([*_SENT, *_FOLDED]))}")
    of_bits, is_float = op in ("and", "or", "xor"), x.is_floating_point() or x.is_complex()
    if (of_bits and is_float) or (op == "avg" and not is_float) or (op in ("min", "max") and x.is_complex()):
        raise ValueError(f"op={op}: not of {x.dtype}")
    if x.dtype is torch.bool and not of_bits:
        raise ValueError(f"op={op}: not of {x.dtype}; allowed: and, or, xor")


def _as_bytes(x: Tensor) -> Tensor:
    """(bytes,), a view where x is contiguous."""
    return x.contiguous().view(-1).view(torch.uint8)


@contextmanager
def _bytes(x: Tensor) -> Iterator[Tensor]:
    """The bytes of x, to be overwritten."""
    data = x.detach().contiguous()
    yield data.view(-1).view(torch.uint8)
    if data.data_ptr() != x.data_ptr():
        x.detach().copy_(data)
