"""Bytes that one rank sends in a collective, as gloo and NCCL do it (docs/simulator.md, Costs of collectives)."""

from __future__ import annotations


def all_reduce(nbytes: int, n: int) -> float:
    """Ring: reduce-scatter and all-gather of n parts of x."""
    return 2 * (n - 1) / n * nbytes


def all_gather(nbytes: int, n: int) -> float:
    """Ring: own part, then every part received but the last; nbytes is one rank's part."""
    return float((n - 1) * nbytes)


def all_to_all(nbytes: int, n: int) -> float:
    """Direct sends: all of x but the own row."""
    return (n - 1) / n * nbytes


def reduce(nbytes: int, n: int, is_root: bool) -> float:
    """Binomial tree: everyone but the root sends its partial result once."""
    return 0.0 if is_root or n == 1 else float(nbytes)


def broadcast(nbytes: int, n: int, distance: int) -> float:
    """Binomial tree that doubles: the rank at `distance` (mod n) behind the root forwards x to its children.

    The root sends to the ranks at 1, 2, 4 and so on; the one at 1 to 3, 5, 9; the one at 2 to 6, 10.
    """
    children = sum(1 for bit in range(n.bit_length()) if distance < 1 << bit < n - distance)
    return float(children * nbytes)


def reduce_scatter(nbytes: int, n: int) -> float:
    """Ring: all of x but one part."""
    return (n - 1) / n * nbytes
