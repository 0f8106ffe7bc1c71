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
    """Binomial tree: the rank at `distance` (mod n) behind the root forwards x to its children."""
    below = distance & -distance if distance else 1 << (n - 1).bit_length()
    children = sum(1 for bit in range(n.bit_length()) if 1 << bit < below and distance + (1 << bit) < n)
    return float(children * nbytes)


def reduce_scatter(nbytes: int, n: int) -> float:
    """Ring: all of x but one part."""
    return (n - 1) / n * nbytes
