"""The GPU kernels of the codecs against the CPU's, bit for bit: interpreted on the CPU, or run on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.base import Op
from algorithms.codecs import Codec, MinMaxUInt8, OneBit
from algorithms.codecs.kernels import Kernels, kernels_for
from tests.unit.test_minmax_uint8 import VECTORS, chunks

pytest.importorskip("triton", reason="Triton is not installed")
from algorithms.codecs import gpu as kernels
from algorithms.codecs.gpu import arithmetic

HAS_GPU = torch.cuda.is_available()
DEVICES = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_GPU, reason="with a GPU Triton compiles, not interprets")),
        pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")),
    ],
)
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")  # what is refused
SCALES = pytest.mark.parametrize("scale", ["mean", "rms"])


class TritonMinMax(MinMaxUInt8):
    """On any device."""

    def _kernels(self, x: torch.Tensor) -> Kernels | None:
        return kernels  # type: ignore[return-value]


class TritonOneBit(OneBit):
    """On any device."""

    def _kernels(self, x: torch.Tensor) -> Kernels | None:
        return kernels  # type: ignore[return-value]


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    """Several blocks for each program, and several programs for each row, on small tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "BLOCK", 32)
        patch.setattr(arithmetic, "PROGRAMS", 6)
        yield


def decoded(codec: Codec, wire: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(like, 7)
    codec.decode(wire, out)
    return out


def reduced(codec: Codec, wire: torch.Tensor, like: torch.Tensor, op: Op) -> torch.Tensor:
    out = torch.full_like(like[0], 7)
    codec.reduce(wire, out, op)
    return out


def used(wire: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The bytes of a MinMaxUInt8 wire that mean something; a minimum or maximum of minus zero reads as zero."""
    header = wire[:, : 2 * x.itemsize].contiguous().view(x.dtype) + 0
    return torch.cat([header.view(torch.uint8), wire[:, 32 : 32 + x.shape[1]]], 1)


def assert_same(x: torch.Tensor, device: str, op: Op = Op.AVG) -> None:
    """MinMaxUInt8 of x, float32, (rows, elements): equal to the CPU's."""
    cpu, gpu, there = MinMaxUInt8(), TritonMinMax(), x.to(device)
    wire = cpu.encode(x)
    assert torch.equal(used(gpu.encode(there).cpu(), x), used(wire, x))
    assert torch.equal(decoded(gpu, wire.to(device), there).cpu(), decoded(cpu, wire, x))
    assert torch.equal(reduced(gpu, wire.to(device), there, op).cpu(), reduced(cpu, wire, x, op))


@DEVICES
@pytest.mark.parametrize(("values", "codes", "numbers"), VECTORS)
def test_vectors(device: str, values: list[float], codes: list[int], numbers: list[float]) -> None:
    codec, x = TritonMinMax(), torch.tensor([values], dtype=torch.float32, device=device)
    wire = codec.encode(x)
    assert wire[0, :8].view(torch.float32).tolist() == [min(values), max(values)]
    assert wire[0, 32 : 32 + len(values)].tolist() == codes
    np.testing.assert_allclose(decoded(codec, wire, x)[0].cpu().numpy(), np.float32(numbers), rtol=0, atol=6e-8)


@DEVICES
@given(values=chunks, op=st.sampled_from([Op.SUM, Op.AVG]))
@settings(max_examples=10, deadline=None)
def test_minmax_equals_the_cpu_bit_for_bit(device: str, values: np.ndarray, op: Op) -> None:
    assert_same(torch.from_numpy(values), device, op)


@DEVICES
@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (1, 1000), (3, 259), (7, 32)])
@pytest.mark.parametrize("offset", [0, 1000])
def test_minmax_over_several_blocks_and_programs(device: str, shape: tuple[int, int], offset: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5)) + offset
    x[:, shape[1] * 2 // 3 :] *= 0 if shape[1] > 1 else 1  # padding
    assert_same(x, device)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_minmax_of_half_precision_equals_plain_torch(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 150, generator=torch.Generator().manual_seed(6)).to(dtype)
    cpu, gpu, there = MinMaxUInt8(native=False), TritonMinMax(), x.to(device)
    wire = cpu.encode(x)
    assert torch.equal(used(gpu.encode(there).cpu(), x), used(wire, x))
    if dtype == torch.float16 or device == "cuda":  # the interpreter rounds to bfloat16 unlike any hardware
        assert torch.equal(decoded(gpu, wire.to(device), there).cpu(), decoded(cpu, wire, x))


signs = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=70), elements=st.floats(-(2.0**40), 2.0**40, width=32)
)


@DEVICES
@SCALES
@given(values=signs, cut=st.integers(0, 9), op=st.sampled_from([Op.SUM, Op.AVG]))
@settings(max_examples=6, deadline=None)
def test_one_bit_equals_the_cpu(device: str, scale: str, values: np.ndarray, cut: int, op: Op) -> None:
    """Scales up to a rounding of sums in another order, everything else bit for bit."""
    x = torch.from_numpy(values)
    valid = [max(x.shape[1] - cut, 0)] * len(x)
    cpu, gpu, there = OneBit(scale), TritonOneBit(scale), x.to(device)  # type: ignore[arg-type]
    wire, other = cpu.encode(x, valid=valid), gpu.encode(there, valid=valid).cpu()
    assert torch.equal(wire[:, 4:], other[:, 4:])
    scales = [w[:, :4].clone().reshape(-1).view(torch.float32) for w in (wire, other)]
    torch.testing.assert_close(scales[0], scales[1], rtol=2**-23, atol=0)
    same = wire.to(device)
    assert torch.equal(decoded(gpu, same, there).cpu().view(torch.int32), decoded(cpu, wire, x).view(torch.int32))
    assert torch.equal(reduced(gpu, same, there, op).cpu(), reduced(cpu, wire, x, op))


@DEVICES
@SCALES
@pytest.mark.parametrize(("shape", "elements"), [((1, 1), 1), ((3, 259), 700), ((2, 40), 40), ((4, 33), 0)])
def test_error_feedback_equals_the_cpu_s_over_steps(
    device: str, scale: str, shape: tuple[int, int], elements: int
) -> None:
    """Wires and memories, bit for bit; rows end in padding."""
    cpu, gpu = OneBit(scale), TritonOneBit(scale)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(7)
    error, other = torch.zeros(shape), torch.zeros(shape, device=device)
    valid = [min(max(elements - j * shape[1], 0), shape[1]) for j in range(shape[0])]
    for _ in range(3):
        x = torch.randn(shape, generator=generator)
        for row, count in zip(x, valid, strict=True):
            row[count:] = 0
        wire = cpu.encode(x, valid=valid, error=error)
        assert torch.equal(gpu.encode(x.to(device), valid=valid, error=other).cpu(), wire)
        assert torch.equal(other.cpu(), error)


@DEVICES
@pytest.mark.parametrize("codec", [TritonMinMax(), TritonOneBit()], ids=["minmax", "one_bit"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_inf_poison_the_row_and_are_raised_by_the_next_call(device: str, codec: Codec, value: float) -> None:
    x = torch.randn(2, 100, device=device)
    x[1, 77] = value
    error = torch.ones_like(x) if isinstance(codec, OneBit) else None
    out = decoded(codec, codec.encode(x, error=error), x)
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1]).all()
    assert error is None or (error[1] == 1).all(), "the memory of a refused row stays"
    torch.cuda.synchronize() if device == "cuda" else None
    x[1, 77] = 0
    with pytest.raises(ValueError, match="NaN or Inf"):
        codec.encode(x)
    codec.encode(x)


@DEVICES
@pytest.mark.parametrize("values", [[-3e38, 3e38], [2e29, 2e29], [-2e29, -2e29]])
def test_what_overflows_float32_is_refused(device: str, values: list[float]) -> None:
    codec, x = TritonMinMax(), torch.tensor([values], device=device)
    assert torch.isnan(decoded(codec, codec.encode(x), x)).all()
    torch.cuda.synchronize() if device == "cuda" else None
    with pytest.raises(ValueError, match="overflow"):
        codec.encode(x)


@DEVICES
def test_a_row_without_elements(device: str) -> None:
    for codec in (TritonMinMax(), TritonOneBit()):
        x = torch.empty(3, 0, device=device)
        assert decoded(codec, codec.encode(x), x).shape == (3, 0)
    TritonMinMax().encode(torch.zeros(1, 1, device=device))  # no refusal is left behind


@pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")
def test_tensors_on_a_gpu_get_these_kernels() -> None:
    assert kernels_for(torch.zeros(2, 3, device="cuda")) is kernels
    assert kernels_for(torch.zeros(2, 3, device="cuda", dtype=torch.float64)) is None


def test_triton_is_not_imported_for_tensors_on_the_cpu() -> None:
    code = (
        "import sys, torch; from algorithms.codecs import OneBit;"
        "OneBit().encode(torch.ones(1, 9)); sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_all_kernels_compile_for_nvidia_gpus_without_fused_multiply_add() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.compiled"], cwd=Path(__file__).parents[2], text=True,
                          capture_output=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {
        "minmax_extremes", "minmax_quantise", "minmax_dequantise", "minmax_reduce",
        "one_bit_sizes", "one_bit_signs", "one_bit_write", "one_bit_reduce",
    }  # fmt: skip
    for name, capability, machine_code, fused, divisions in lines:
        assert int(machine_code) > 0, (name, capability)
        assert int(fused) == 0, f"{name}: contraction to fused multiply-add changes the codes"
        assert set(divisions.split(",")) <= {"-", "div.rn.f32", "div.rn.f64", "div.s32"}, f"{name}: not IEEE division"
