"""ByteGrad: data-parallel SGD on 8-bit gradients (docs/algorithms.md, ByteGrad)."""

from __future__ import annotations

from functools import partial

from algorithms.base import Algorithm, Bucket, Comm
from algorithms.codecs import MinMaxUInt8
from algorithms.primitives import c_lp_s


class ByteGrad(Algorithm):
    """Full-precision mean inside a server, 8-bit scatter-gather between servers; then the optimizer step."""

    line_share = 0.25

    def __init__(
        self,
        average: bool = True,
        hierarchical: bool = True,
        compress_single_rank: bool = False,
    ) -> None:
        self.hierarchical = hierarchical
        self.exchange = partial(
            c_lp_s,
            codec=MinMaxUInt8(),
            average=average,
            compress_single_rank=compress_single_rank,
        )

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        self.exchange(bucket.grad, comm, hierarchical=self.hierarchical)
