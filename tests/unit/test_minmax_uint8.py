"""The 8-bit codec: the format's test vectors, its bounds, and the compiled kernel against plain torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.base import Op
from algorithms.codecs.minmax_uint8 import MinMaxUInt8
from algorithms.codecs.native import KERNELS

NATIVE = pytest.param(
    True, id="native", marks=pytest.mark.skipif(KERNELS is None, reason="codec kernels not built: no C++ compiler")
)
BOTH = pytest.mark.parametrize("native", [NATIVE, pytest.param(False, id="reference")])

VECTORS = [  # input, codes, decoded (docs/algorithms.md, Codecs)
    ([0, 1, 2, 3], [0, 85, 170, 255], [0, 1, 2, 3]),
    ([-1, -0.25, 0, 0.5, 3], [0, 48, 64, 96, 255], [-1.0039216, -0.2509804, 0, 0.5019608, 2.9960785]),
    ([-1, -0.5, 0, 0.25, 1], [0, 63, 127, 159, 255], [-0.9960784, -0.5019608, 0, 0.2509804, 1.0039216]),
    ([-3, -1, -2], [1, 255, 128], [-2.9960785, -1.0039216, -2]),
    ([0.5, -0.25, 0.125, 0], [255, 0, 127, 85], [0.5000001, -0.2500001, 0.1235294, 0]),
    ([0, 0, 0], [255, 255, 255], [0, 0, 0]),
]

LARGE = float(np.float32(1e28))
finite = st.floats(-LARGE, LARGE, width=32, allow_nan=False, allow_infinity=False)
chunks = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70), elements=finite)


def round_trip(codec: MinMaxUInt8, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 7)
    codec.decode(codec.encode(x), out)
    return out


def bound(x: torch.Tensor) -> torch.Tensor:
    """|decoded - x| of every row at most, (rows, 1)."""
    spread = x.double().amax(1) - x.double().amin(1)
    return ((spread + 1e-7) / 510 * (1 + 1e-5) + 2**-23 * x.double().abs().amax(1) * 2)[:, None]


@BOTH
@pytest.mark.parametrize(("values", "codes", "decoded"), VECTORS)
def test_vectors(native: bool, values: list[float], codes: list[int], decoded: list[float]) -> None:
    codec = MinMaxUInt8(native=native)
    x = torch.tensor([values], dtype=torch.float32)
    wire = codec.encode(x)
    assert wire.shape == (1, 64)
    assert wire[0, :8].view(torch.float32).tolist() == [min(values), max(values)]
    assert wire[0, 32 : 32 + len(values)].tolist() == codes
    np.testing.assert_allclose(round_trip(codec, x)[0].numpy(), np.float32(decoded), rtol=0, atol=6e-8)


@BOTH
@given(values=chunks)
@settings(max_examples=100, deadline=None)
def test_error_is_bounded(native: bool, values: np.ndarray) -> None:
    x = torch.from_numpy(values)
    assert ((round_trip(MinMaxUInt8(native=native), x).double() - x.double()).abs() <= bound(x)).all()


@pytest.mark.skipif(KERNELS is None, reason="codec kernels not built: no C++ compiler")
@given(values=chunks, op=st.sampled_from([Op.SUM, Op.AVG]))
@settings(max_examples=200, deadline=None)
def test_kernel_equals_reference_bit_for_bit(values: np.ndarray, op: Op) -> None:
    x = torch.from_numpy(values)
    native, reference = MinMaxUInt8(), MinMaxUInt8(native=False)
    wire, expected = native.encode(x), reference.encode(x)
    used = slice(32, 32 + x.shape[1])
    assert torch.equal(wire[:, :8].contiguous().view(torch.float32), expected[:, :8].contiguous().view(torch.float32))
    assert torch.equal(wire[:, used], expected[:, used])
    assert torch.equal(round_trip(native, x), round_trip(reference, x))
    sums = torch.empty(2, x.shape[1])
    native.reduce(wire, sums[0], op)
    reference.reduce(wire, sums[1], op)
    assert torch.equal(sums[0], sums[1])


@BOTH
def test_formula_in_numpy(native: bool) -> None:
    x = np.random.default_rng(3).normal(size=(3, 1000)).astype(np.float32)
    wire = MinMaxUInt8(native=native).encode(torch.from_numpy(x)).numpy()
    for row, coded in zip(x, wire, strict=True):
        low, high = row.min(), row.max()
        scale = np.float32(255) / ((high - low) + np.float32(1e-7))
        upper = np.rint(high * scale)
        codes = np.minimum(np.rint(row * scale), upper) - (upper - np.float32(255))
        np.testing.assert_array_equal(coded[32:1032], np.clip(codes, 0, 255).astype(np.uint8))


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("position", [0, 5, 99])
def test_nan_and_inf_are_refused(native: bool, value: float, position: int) -> None:
    x = torch.randn(2, 100)
    x[1, position] = value
    with pytest.raises(ValueError, match="NaN or Inf"):
        MinMaxUInt8(native=native).encode(x)


@BOTH
@pytest.mark.parametrize("values", [[-3e38, 3e38], [2e29, 2e29], [-2e29, -2e29]])
def test_what_overflows_float32_is_refused(native: bool, values: list[float]) -> None:
    with pytest.raises(ValueError, match="overflow"):
        MinMaxUInt8(native=native).encode(torch.tensor([values]))


@BOTH
@pytest.mark.parametrize("shape", [(3, 0), (1, 1), (4, 1), (2, 33)])
def test_small_shapes(native: bool, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    codec = MinMaxUInt8(native=native)
    assert codec.encode(x).shape == (shape[0], codec.wire_bytes(shape[1], torch.float32))
    assert ((round_trip(codec, x) - x).abs() <= bound(x)).all() if x.numel() else True


@BOTH
def test_exact_zeros_and_constant_rows_survive(native: bool) -> None:
    x = torch.randn(1, 64)
    x[0, ::2] = 0
    assert (round_trip(MinMaxUInt8(native=native), x)[0, ::2] == 0).all()
    constant = torch.full((1, 64), 3.25)
    torch.testing.assert_close(round_trip(MinMaxUInt8(native=native), constant), constant, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2**-10), (torch.bfloat16, 2**-7)])
def test_half_precision(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(4, 256).to(dtype)
    codec = MinMaxUInt8()
    wire = codec.encode(x)
    assert wire[:, :4].contiguous().view(dtype).tolist() == [[row.min().item(), row.max().item()] for row in x]
    error = (round_trip(codec, x).float() - x.float()).abs()
    assert (error <= bound(x.float()) + tolerance * x.float().abs().amax(1, keepdim=True)).all()


def test_wire_size_is_the_format_s() -> None:
    for elements in (0, 1, 31, 32, 33, 1000):
        assert MinMaxUInt8().wire_bytes(elements, torch.float32) == 32 + (elements + 31) // 32 * 32
