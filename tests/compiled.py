"""`python -m tests.compiled`: compile the codecs' Triton kernels for NVIDIA GPUs, on a machine that need not have one.

A line per kernel: name, compute capability, bytes of machine code, fused multiply-adds, kinds of division. It needs its
own process, because a process that interprets kernels cannot compile them.
"""

from __future__ import annotations

import os
import re
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from algorithms.codecs.gpu import arithmetic, minmax, one_bit

_F, _I, _BYTES = "*fp32", "i32", "*u8"
_ROW = {"elements": _I, "stride": _I}
_MEMORY = {"x": _F, "memory": _F, "partials": "*fp64", "counts": "*i32"}
_FEEDBACK = {"FEEDBACK": True, "RMS": True}
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "minmax_extremes": (minmax._extremes, {"x": _F, "partials": _F, "elements": _I}, {}),
    "minmax_quantise": (
        minmax._quantise,
        {"x": _F, "partials": _F, "wire": _BYTES, "refused": "*i32", **_ROW, "eps": "fp32"},
        {"PARTS": 1024},
    ),
    "minmax_dequantise": (minmax._dequantise, {"wire": _BYTES, "out": "*bf16", **_ROW, "eps": "fp32"}, {}),
    "minmax_reduce": (
        minmax._reduce,
        {"wire": _BYTES, "out": _F, "rows": _I, **_ROW, "eps": "fp32"},
        {"DIVISOR": 3},
    ),
    "one_bit_sizes": (one_bit._sizes, {**_MEMORY, "elements": _I}, _FEEDBACK),
    "one_bit_signs": (
        one_bit._signs,
        {**_MEMORY, "wire": _BYTES, "refused": "*i32", **_ROW},
        {"PARTS": 1024, **_FEEDBACK},
    ),
    "one_bit_write": (one_bit._write, {"wire": _BYTES, "out": _F, **_ROW}, {}),
    "one_bit_reduce": (
        one_bit._reduce,
        {"wire": _BYTES, "out": _F, "rows": _I, **_ROW},
        {"DIVISOR": 3},
    ),
}


def main() -> None:
    for name, (kernel, types, constants) in KERNELS.items():
        fixed = {"BLOCK": arithmetic.BLOCK, **constants}
        signature = {**types, **dict.fromkeys(fixed, "constexpr")}
        for capability in (80, 90):
            source = ASTSource(kernel, signature=signature, constexprs=fixed)
            compiled = triton.compile(source, GPUTarget("cuda", capability, 32), arithmetic.OPTIONS)
            text = compiled.asm["ptx"]
            divisions = ",".join(sorted(set(re.findall(r"\bdiv\.[\w.]+", text)))) or "-"
            print(name, capability, len(compiled.asm["cubin"]), len(re.findall(r"\bfma\.", text)), divisions)


if __name__ == "__main__":
    main()
