"""Implementations of `algorithms.base.Comm`: torch process groups, threads."""

from bagua_bench.comm.counted import CommError, CountedComm

__all__ = ["CommError", "CountedComm"]
