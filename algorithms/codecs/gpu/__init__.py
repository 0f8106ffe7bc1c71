"""The codec kernels for GPUs, in Triton: `kernels.Kernels`. Imported only where there is a GPU, or to be tested.

Without a GPU the tests run them through Triton's interpreter and compile them for NVIDIA GPUs.
"""

from algorithms.codecs.gpu.minmax import minmax_decode, minmax_encode, minmax_reduce
from algorithms.codecs.gpu.one_bit import one_bit_decode, one_bit_encode, one_bit_reduce

__all__ = [
    "minmax_decode",
    "minmax_encode",
    "minmax_reduce",
    "one_bit_decode",
    "one_bit_encode",
    "one_bit_reduce",
]
