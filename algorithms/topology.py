"""Peers of a rank in decentralised exchanges (docs/algorithms.md, Decentralized SGD)."""

from __future__ import annotations


def shift_one(exchange: int, rank: int, size: int) -> list[int]:
    """The one peer of `rank` in the given exchange (0, 1, ...): a symmetric pairing of two halves, period size / 2.

    ValueError for an odd number of ranks.
    """
    check_even(size)
    half = size // 2
    if rank < half:
        return [(exchange + rank) % half + half]
    return [(rank - half - exchange) % half]


def check_even(size: int) -> None:
    """ValueError unless `size` ranks can be paired."""
    if size % 2:
        raise ValueError(f"peers=shift_one: pairs need an even number of ranks (or servers), there are {size}")


def ring(rank: int, size: int) -> list[int]:
    """Left and right neighbour; with two ranks both are the same."""
    return [(rank - 1) % size, (rank + 1) % size]
