"""The 1-bit codec: the identity of error feedback, the formula in NumPy, kernel against plain torch, convergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.base import Op
from algorithms.codecs import OneBit
from algorithms.codecs.native import KERNELS
from algorithms.primitives import c_lp_s, error_memory
from bagua_bench.comm import CountedComm
from tests.ranks import run

BOTH = pytest.mark.parametrize(
    "native",
    [
        pytest.param(True, id="native", marks=pytest.mark.skipif(KERNELS is None, reason="codec kernels not built")),
        pytest.param(False, id="reference"),
    ],
)
finite = st.floats(-(2.0**40), 2.0**40, width=32)
rows = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70), elements=finite)


@BOTH
@pytest.mark.parametrize("scale", ["mean", "rms"])
def test_formula_in_numpy(native: bool, scale: str) -> None:
    x = np.random.default_rng(1).normal(size=(3, 21)).astype(np.float32)
    x[0, 0] = 0
    valid = [21, 13, 0]
    wire = OneBit(scale, native).encode(torch.from_numpy(x), valid=valid).numpy()  # type: ignore[arg-type]
    assert wire.shape == (3, 4 + 3)
    for row, coded, count in zip(x, wire, valid, strict=True):
        used = row[:count].astype(np.float64)
        expected = 0.0
        if count:
            expected = np.abs(used).mean() if scale == "mean" else np.sqrt((used**2).mean())
        assert coded[:4].view(np.float32)[0] == np.float32(expected)
        signs = np.unpackbits(coded[4:], bitorder="little")[:21]
        np.testing.assert_array_equal(signs, row >= 0)


@BOTH
@given(values=rows, memory=rows, data=st.data())
@settings(max_examples=80, deadline=None)
def test_error_feedback_loses_nothing(
    native: bool, values: np.ndarray, memory: np.ndarray, data: st.DataObject
) -> None:
    """decoded + new error = value + old error, up to one rounding; padding has no error."""
    x = torch.from_numpy(values)
    error = torch.from_numpy(np.resize(memory, values.shape)).clone()
    valid = [data.draw(st.integers(0, x.shape[1])) for _ in range(len(x))]
    total = (x + error).double()
    codec = OneBit(native=native)
    wire = codec.encode(x, valid=valid, error=error)
    decoded = torch.empty_like(x)
    codec.decode(wire, decoded)
    for j, count in enumerate(valid):
        kept = (decoded[j].double() + error[j].double())[:count]
        largest = torch.maximum(total[j, :count].abs(), decoded[j, :count].double().abs())
        assert ((kept - total[j, :count]).abs() <= 2**-23 * largest + 1e-38).all()
        assert (error[j, count:] == 0).all()


@pytest.mark.skipif(KERNELS is None, reason="codec kernels not built: no C++ compiler")
@given(values=rows, op=st.sampled_from([Op.SUM, Op.AVG]), scale=st.sampled_from(["mean", "rms"]), cut=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_kernel_equals_reference(values: np.ndarray, op: Op, scale: str, cut: int) -> None:
    x = torch.from_numpy(values)
    valid = [max(x.shape[1] - cut, 0)] * len(x)
    native, reference = OneBit(scale), OneBit(scale, native=False)  # type: ignore[arg-type]
    errors = [torch.ones_like(x) for _ in range(2)]
    wires = [codec.encode(x, valid=valid, error=e) for codec, e in zip((native, reference), errors, strict=True)]
    scales = [wire[:, :4].clone().reshape(-1).view(torch.float32) for wire in wires]
    torch.testing.assert_close(scales[0], scales[1], rtol=2**-23, atol=0)  # sums of doubles in another order
    assert torch.equal(wires[0][:, 4:], wires[1][:, 4:])
    decoded, sums = torch.empty(2, *x.shape), torch.empty(2, x.shape[1])
    for k, codec in enumerate((native, reference)):  # the same wire from here on: bit for bit
        codec.decode(wires[0], decoded[k])
        codec.reduce(wires[0], sums[k], op)
    assert torch.equal(decoded[0], decoded[1])
    assert torch.equal(sums[0], sums[1])


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("error", [False, True])
def test_nan_and_inf_are_refused(native: bool, value: float, error: bool) -> None:
    x = torch.randn(2, 50)
    x[1, 17] = value
    with pytest.raises(ValueError, match="NaN or Inf"):
        OneBit(native=native).encode(x, error=torch.zeros_like(x) if error else None)


@BOTH
@pytest.mark.parametrize("shape", [(2, 0), (1, 1), (3, 7), (2, 8), (2, 9)])
def test_small_shapes(native: bool, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    codec, out = OneBit(native=native), torch.empty(shape)
    codec.decode(codec.encode(x), out)
    expected = torch.where(x >= 0, 1, -1) * x.abs().mean(1, keepdim=True) if x.numel() else out
    torch.testing.assert_close(out, expected)


def descend(comm: CountedComm, steps: int, feedback: bool) -> torch.Tensor:
    """Gradient descent on the mean of 1/2 |x - c_r|^2 in 32 dimensions; the mean of all iterates but the first 300."""
    centre = torch.randn(32, generator=torch.Generator().manual_seed(comm.rank))
    x, tail, codec = torch.zeros(32), torch.zeros(32), OneBit()
    memory = error_memory(x, comm, hierarchical=False)
    errors = (memory["sent_error"], memory["reduced_error"]) if feedback else None
    for k in range(steps):
        gradient = x - centre
        c_lp_s(gradient, comm, codec, errors=errors)
        x = x - 0.05 * gradient
        tail += x if k >= 300 else 0
    return tail / (steps - 300)


def test_one_bit_descent_converges_with_error_feedback_and_stalls_without() -> None:
    optimum = torch.stack([torch.randn(32, generator=torch.Generator().manual_seed(r)) for r in range(4)]).mean(0)

    def distance(steps: int, feedback: bool) -> float:
        results = run("threads", 4, descend, steps, feedback)
        assert all(torch.equal(x, results[0]) for x in results)
        return float((results[0] - optimum).norm() / optimum.norm())

    assert distance(4000, True) < 1e-4
    stalled = distance(1000, False)
    assert stalled > 0.3
    assert distance(500, False) < 1.1 * stalled, "more steps do not help without feedback"


def exchange(comm: CountedComm, steps: int, elements: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    codec, out = OneBit(), []
    memory = error_memory(torch.empty(24), comm, hierarchical=False)
    for k in range(steps):
        x = torch.randn(24, generator=torch.Generator().manual_seed(100 * k + comm.rank))
        x[elements:] = 0
        c_lp_s(x, comm, codec, errors=(memory["sent_error"], memory["reduced_error"]), elements=elements)
        out.append(x)
    return out, memory["sent_error"], memory["reduced_error"]


@pytest.mark.parametrize(("kind", "size"), [("threads", 2), ("threads", 3), ("gloo", 2), ("gloo", 4)])
@pytest.mark.parametrize("elements", [24, 19])
def test_scatter_gather_with_both_memories_by_hand(kind: str, size: int, elements: int) -> None:
    """All ranks' memories and results over five exchanges, in NumPy from the formulas (docs/algorithms.md, Codecs)."""
    length = 24 // size
    counts = [min(max(elements - j * length, 0), length) for j in range(size)]

    def code(c: np.ndarray, count: int) -> np.ndarray:
        scale = np.float32(np.abs(c[:count].astype(np.float64)).mean()) if count else np.float32(0)
        return np.where(c >= 0, scale, -scale).astype(np.float32)

    sent, reduced = np.zeros((size, size, length), np.float32), np.zeros((size, length), np.float32)
    results = run(kind, size, exchange, 5, elements)
    for k in range(5):
        x = np.stack(
            [torch.randn(24, generator=torch.Generator().manual_seed(100 * k + r)).numpy() for r in range(size)]
        )
        x[:, elements:] = 0
        c = x.reshape(size, size, length) + sent
        coded = np.stack([[code(c[r, j], counts[j]) for j in range(size)] for r in range(size)])
        sent = c - coded
        for j in range(size):
            sent[:, j, counts[j] :] = 0
        total = coded[0].copy()
        for r in range(1, size):
            total = total + coded[r]
        target = total / np.float32(size) + reduced
        final = np.stack([code(target[j], counts[j]) for j in range(size)])
        reduced = target - final
        for j in range(size):
            reduced[j, counts[j] :] = 0
        for out, _, _ in results:
            np.testing.assert_allclose(out[k].numpy()[:elements], final.reshape(-1)[:elements], rtol=1e-6)
    for r, (out, sent_error, reduced_error) in enumerate(results):
        assert torch.equal(out[-1], results[0][0][-1])
        np.testing.assert_allclose(sent_error.numpy(), sent[r].reshape(-1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reduced_error.numpy(), reduced[r], rtol=1e-5, atol=1e-6)
