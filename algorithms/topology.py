"""Peers of a rank in decentralised exchanges (docs/algorithms.md, Decentralized SGD)."""

from __future__ import annotations


def shift_one(exchange: int, rank: int, size: int) -> list[int]:
    """The one peer of `rank` in the given exchange (0, 1, ...): a symmetric pairing of two halves, period size / 2.

    Of an odd number one rank has none: all but rank 0 in turn, period size - 1. The others pair as if they were alone.
    """
    if size % 2:
        if size == 1:
            return []
        left_out = 1 + exchange % (size - 1)
        if rank == left_out:
            return []
        [peer] = shift_one(exchange, rank - (rank > left_out), size - 1)
        return [peer + (peer >= left_out)]
    half = size // 2
    if rank < half:
        return [(exchange + rank) % half + half]
    return [(rank - half - exchange) % half]


def ring(rank: int, size: int) -> list[int]:
    """Left and right neighbour; with two ranks both are the same."""
    return [(rank - 1) % size, (rank + 1) % size]
