"""The paper's communication primitives: centralised or decentralised, full or low precision, synchronous.

See docs/algorithms.md, Primitives.

Bytes are those a rank sends; N elements of s bytes, n ranks. With `hierarchical` a primitive runs between the
leaders of the servers, after a reduction inside each server and before a broadcast; n is
then the number of servers. Where there is only one server it runs between all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from algorithms.base import Comm, Op
from algorithms.codecs.base import Codec
from algorithms.topology import ring


def participants(comm: Comm, hierarchical: bool, compress_single_rank: bool = False) -> int:
    """The number of participants in the exchange of a primitive with these options: all ranks, or the servers."""
    servers = _servers(comm, hierarchical, compress_single_rank)
    return comm.size if servers is None else comm.size // servers.size


def error_memory(
    x: Tensor, comm: Comm, *, hierarchical: bool, alone: bool = False, feedback: bool = True
) -> dict[str, Tensor]:
    """Zeroed error-feedback memories for `c_lp_s` of x (N,): sent_error (N,) and reduced_error (N/n,), float32.

    alone: `compress_single_rank` there. Empty without `feedback`.
    """
    if not feedback:
        return {}
    sent = torch.zeros_like(x, dtype=torch.float32)
    return {
        "sent_error": sent,
        "reduced_error": torch.zeros_like(sent[: len(sent) // participants(comm, hierarchical, alone)]),
    }


def errors_of(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """The memories that `error_memory` put into a bucket's state, in the form that `c_lp_s` takes; None without any."""
    return (state["sent_error"], state["reduced_error"]) if "sent_error" in state else None


def c_fp_s(x: Tensor, comm: Comm, *, average: bool = True, hierarchical: bool = False) -> None:
    """Centralised, full precision: x (N,) becomes the mean (or sum) over all ranks, in place.

    One all-reduce: 2(n-1)/n N s bytes in 2(n-1) rounds (ring). Source: Bagua, primitive C_FP_S.
    """
    op = Op.AVG if average else Op.SUM
    _by_server(x, comm, _servers(comm, hierarchical), op, lambda group: group.all_reduce(x, op))


def c_lp_s(
    x: Tensor,
    comm: Comm,
    codec: Codec,
    *,
    average: bool = True,
    hierarchical: bool = False,
    compress_single_rank: bool = False,
    errors: tuple[Tensor, Tensor] | None = None,
    elements: int | None = None,
) -> None:
    """Centralised, low precision: x (N,), n | N, becomes the compressed mean (or sum), bit-equal on all ranks.

    Scatter-gather with two quantisations per element: 2(n-1) w bytes, w the wire size of one chunk of N/n
    elements, in two rounds of direct sends. errors: error-feedback memories of this rank, float32, (N,) for the
    data it sends and (N/n,) for the data it reduces, updated in place; None: no feedback. elements: this many of
    the N, the first ones, are not padding. Source: Bagua, primitive C_LP_S.
    """
    op = Op.AVG if average else Op.SUM

    def exchange(group: Comm) -> None:
        if group.size > 1 or compress_single_rank:
            _scatter_gather(x, group, codec, op, errors, x.numel() if elements is None else elements)

    _by_server(x, comm, _servers(comm, hierarchical, compress_single_rank), op, exchange)


def d_fp_s(
    x: Tensor, out: Tensor, comm: Comm, peers: Callable[[int, int], list[int]], *, hierarchical: bool = False
) -> None:
    """Decentralised, full precision: out (N,) becomes the mean of x (N,) and the x of every peer; x stays.

    One round of direct sends: N s bytes to each peer. `peers(rank, size)` names them, maybe none; symmetric.
    Hierarchical: x is averaged inside each server first. Source: Bagua, primitive D_FP_S.
    """
    out.copy_(x)

    def exchange(group: Comm) -> None:
        received = group.exchange(out, peers(group.rank, group.size))
        for other in received:
            out.add_(other)
        out.div_(1 + len(received))

    _by_server(out, comm, _servers(comm, hierarchical), Op.AVG, exchange)


def d_lp_s(
    x: Tensor,
    replicas: tuple[Tensor, Tensor, Tensor],
    comm: Comm,
    codec: Codec,
    *,
    hierarchical: bool = False,
    compress_single_rank: bool = False,
) -> None:
    """Decentralised, low precision: one step of compressed gossip on a ring, x (N,) in place.

    `replicas` (own, left, right), each (N,), are the copies that the neighbours keep of this rank, and this rank of
    them; they advance by the decoded differences alone, so the copies of one model are equal bit for bit on all three
    ranks.
    One round of direct sends: 2 w bytes, w the wire size of N elements in one chunk, whatever n.
    Source: Bagua, primitive D_LP_S.
    """

    def exchange(group: Comm) -> None:
        if group.size > 1 or compress_single_rank:
            _gossip(x, replicas, group, codec)

    _by_server(x, comm, _servers(comm, hierarchical, compress_single_rank), Op.AVG, exchange)


def _scatter_gather(
    x: Tensor, comm: Comm, codec: Codec, op: Op, errors: tuple[Tensor, Tensor] | None, elements: int
) -> None:
    assert x.numel() % comm.size == 0, "the bucket is padded to a multiple of the ranks"
    chunks = x.view(comm.size, -1)
    length = chunks.shape[1]
    valid = [min(max(elements - row * length, 0), length) for row in range(comm.size)]
    mine = chunks[comm.rank : comm.rank + 1]

    wire = codec.encode(chunks, codec.buffer(chunks), valid, errors[0].view_as(chunks) if errors else None)
    received = comm.all_to_all(wire, _spare(chunks, comm.rank, wire.shape))
    codec.reduce(received, mine[0], op)
    small = _spare(chunks, comm.rank, wire[:1].shape)
    reduced = codec.encode(mine, small, valid[comm.rank : comm.rank + 1], errors[1].view_as(mine) if errors else None)
    codec.decode(comm.all_gather(reduced[0], wire), chunks)


def _gossip(x: Tensor, replicas: tuple[Tensor, Tensor, Tensor], comm: Comm, codec: Codec) -> None:
    own, left, right = replicas
    # `out=`: where values do not matter, in an emulation or a simulation, nothing is computed then
    difference = torch.add(left, right, out=x.new_empty(x.shape)).div_(3).sub_(own, alpha=5 / 3).add_(x)
    sent = codec.encode(difference[None])
    from_left, from_right = comm.exchange(sent, ring(comm.rank, comm.size)) if comm.size > 1 else (sent, sent)
    for replica, wire in ((left, from_left), (right, from_right), (own, sent)):
        codec.decode(wire, difference[None])
        replica.add_(difference)
    x.copy_(own)


def _spare(chunks: Tensor, rank: int, shape: Sequence[int]) -> Tensor | None:
    """Room for bytes in the rows beside row `rank`: their values are on the wire, and the answers overwrite them.

    Messages of hundreds of MB need no memory of their own this way. None where they do not fit (few or short rows).
    """
    before, after = chunks[:rank], chunks[rank + 1 :]
    room = (before if len(before) > len(after) else after).view(-1).view(torch.uint8)
    needed = math.prod(shape)
    return room[:needed].view(shape) if room.numel() >= needed else None


def _servers(comm: Comm, hierarchical: bool, even_if_single: bool = False) -> Comm | None:
    """The ranks of the own server where an exchange runs between servers; None where it runs between all ranks.

    even_if_single: a single server's leader exchanges with itself, as the published code does.
    """
    intra = comm.intra if hierarchical else None
    return intra if intra is not None and (intra.size < comm.size or even_if_single) else None


def _by_server(x: Tensor, comm: Comm, intra: Comm | None, op: Op, exchange: Callable[[Comm], None]) -> None:
    """Run `exchange` among all ranks, or among the leaders between a reduction and a broadcast inside servers."""
    if intra is None:
        exchange(comm)
        return
    intra.reduce(x, 0, op)
    if comm.inter is not None:
        exchange(comm.inter)
    intra.broadcast(x, 0)
