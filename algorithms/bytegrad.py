"""ByteGrad: data-parallel SGD on 8-bit gradients (spec: algorithms 6.2)."""

from __future__ import annotations

from algorithms.base import Algorithm, Bucket, Comm
from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.primitives import c_lp_s


class ByteGrad(Algorithm):
    """Full-precision mean inside a server, 8-bit scatter-gather between servers; then the optimizer step."""

    def __init__(self, average: bool = True, hierarchical: bool = True, compress_single_rank: bool = False) -> None:
        self.average = average
        self.hierarchical = hierarchical
        self.compress_single_rank = compress_single_rank
        self.codec = MinMaxUInt8()

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        c_lp_s(
            bucket.grad,
            comm,
            self.codec,
            average=self.average,
            hierarchical=self.hierarchical,
            compress_single_rank=self.compress_single_rank,
        )
