"""Rehearses each piece of an algorithm once for every kind of bucket, and writes it down again for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from algorithms.base import Bucket
from bagua_bench.machine.program import Operation
from bagua_bench.simulate.tape import Tape, TapeComm

Kind = tuple[Any, ...]


class Unlike(Exception):
    """Buckets of one kind are not treated alike; the algorithm has to be rehearsed bucket by bucket."""


@dataclass(frozen=True)
class _Done:
    """What a piece has done: its operations, and the bytes that it sent by level."""

    operations: tuple[Operation, ...]
    sent: dict[str, float]


class Replay:
    """Calls pieces of an algorithm on the first bucket of every kind, and repeats on the others what they did there.

    Buckets are of one kind if their parameters have the same shapes and types. The first of a kind goes through all
    pieces, so that its state is what it would be. Unlike, where another one of the kind goes through a piece first.
    """

    def __init__(self, tape: Tape, comm: TapeComm) -> None:
        self._tape, self._comm = tape, comm
        self._first: dict[Kind, Bucket] = {}
        self._done: dict[tuple[Any, ...], _Done] = {}

    def perform(self, piece: Callable[..., None], bucket: Bucket, *rest: Any) -> None:
        """Call the piece, or write down what it would do; the last argument is the step."""
        kind = _kind(bucket)
        key = (piece, kind, rest[-1])
        if self._first.setdefault(kind, bucket) is bucket:
            self._done[key] = self._call(piece, bucket, *rest)
        elif key in self._done:
            for operation in self._done[key].operations:
                self._tape.operation(operation)
            self._comm.count(self._done[key].sent)
        else:
            raise Unlike

    def _call(self, piece: Callable[..., None], *arguments: Any) -> _Done:
        before = self._comm.sent
        with self._tape.watched() as seen, self._tape.meter():
            piece(*arguments)
        return _Done(tuple(seen), {level: sent - before[level] for level, sent in self._comm.sent.items()})


def _kind(bucket: Bucket) -> Kind:
    return bucket.weight.dtype, bucket.weight.numel(), *(tuple(p.shape) for p in bucket.params)
