"""Lossy codecs for gradients, momenta and weights."""

from algorithms.codecs.base import Codec
from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.codecs.one_bit import OneBit

__all__ = ["CODECS", "Codec", "MinMaxUInt8", "OneBit"]

CODECS: dict[str, type[Codec]] = {"minmax_uint8": MinMaxUInt8, "one_bit": OneBit}
"""By the names used in configurations."""
