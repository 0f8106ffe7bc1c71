"""The paper's communication primitives: centralised or decentralised, full or low precision, synchronous.

Bytes are those a rank sends; N elements of s bytes, n ranks. With `hierarchical` a primitive runs between the
leaders of the servers, after a reduction inside each server and before a broadcast (spec: algorithms 2); n is
then the number of servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from algorithms.base import Comm, Op
from algorithms.codecs.base import Codec


def c_fp_s(x: Tensor, comm: Comm, *, average: bool = True, hierarchical: bool = False) -> None:
    """Centralised, full precision: x (N,) becomes the mean (or sum) over all ranks, in place.

    One all-reduce: 2(n-1)/n N s bytes in 2(n-1) rounds (ring). Source: Bagua, primitive C_FP_S.
    """
    op = Op.AVG if average else Op.SUM
    _by_server(x, comm, hierarchical, op, lambda group: group.all_reduce(x, op))


def c_lp_s(
    x: Tensor,
    comm: Comm,
    codec: Codec,
    *,
    average: bool = True,
    hierarchical: bool = False,
    compress_single_rank: bool = False,
) -> None:
    """Centralised, low precision: x (N,), n | N, becomes the compressed mean (or sum), bit-equal on all ranks.

    Scatter-gather with two quantisations per element: 2(n-1) w bytes, w the wire size of one chunk of N/n
    elements, in two rounds of direct sends. Source: Bagua, primitive C_LP_S; spec: algorithms 5.
    """
    op = Op.AVG if average else Op.SUM

    def exchange(group: Comm) -> None:
        if group.size > 1 or compress_single_rank:
            _scatter_gather(x, group, codec, op)

    _by_server(x, comm, hierarchical, op, exchange)


def _scatter_gather(x: Tensor, comm: Comm, codec: Codec, op: Op) -> None:
    assert x.numel() % comm.size == 0, "the bucket is padded to a multiple of the ranks"
    chunks = x.view(comm.size, -1)
    mine = chunks[comm.rank : comm.rank + 1]
    wire = codec.encode(chunks, codec.buffer(chunks))
    received = comm.all_to_all(wire, _spare(chunks, comm.rank, wire.shape))
    codec.reduce(received, mine[0], op)
    reduced = codec.encode(mine, _spare(chunks, comm.rank, wire[:1].shape))
    codec.decode(comm.all_gather(reduced[0], wire), chunks)


def _spare(chunks: Tensor, rank: int, shape: Sequence[int]) -> Tensor | None:
    """Room for bytes in the rows beside row `rank`: their values are on the wire, and what comes back overwrites them.

    Messages of hundreds of MB need no memory of their own this way. None where they do not fit (few or short rows).
    """
    before, after = chunks[:rank], chunks[rank + 1 :]
    room = (before if len(before) > len(after) else after).view(-1).view(torch.uint8)
    needed = math.prod(shape)
    return room[:needed].view(shape) if room.numel() >= needed else None


def _by_server(x: Tensor, comm: Comm, hierarchical: bool, op: Op, exchange: Callable[[Comm], None]) -> None:
    """Run `exchange` among all ranks, or among the leaders between a reduction and a broadcast inside servers."""
    if not hierarchical or comm.intra is None:
        exchange(comm)
        return
    comm.intra.reduce(x, 0, op)
    if comm.inter is not None:
        exchange(comm.inter)
    comm.intra.broadcast(x, 0)
