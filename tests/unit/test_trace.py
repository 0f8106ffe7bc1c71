"""No step of the engine makes the host wait for the GPU: judged from a trace; the real one needs a GPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from algorithms.bytegrad import ByteGrad
from algorithms.decentralized import Decentralized
from algorithms.gradient_allreduce import GradientAllReduce
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.engine import Engine
from bagua_bench.gpu import trace

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def event(name: str, start: int, end: int) -> Any:
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end))


STEP = event(trace._STEP, 10, 90)
LAUNCH = event("cudaLaunchKernel", 20, 21)


WAITS = ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cuEventSynchronize", "cudaMemcpy", "cuMemcpy"]


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_within_the_step_is_found(name: str) -> None:
    assert trace.waits([STEP, LAUNCH, event(name, 30, 80), event(name, 40, 41)]) == [name]
    assert trace.waits([STEP, LAUNCH, event(name, 5, 6), event(name, 95, 99)]) == [], "the profiler's own"


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_what_does_not_wait_is_none_and_no_trace_is_no_proof() -> None:
    quiet = ["cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventRecord", "aten::copy_", "cudaMemsetAsync"]
    assert trace.waits([STEP, LAUNCH, *(event(name, 30, 31) for name in quiet)]) == []
    assert trace.waits([STEP, event("aten::mm", 30, 40)]) is None
    x = torch.ones(8, requires_grad=True)
    assert trace.traced(lambda: (x * 2).sum().backward()) is None, "a CPU has no CUDA calls"


@NEEDS_GPU
@pytest.mark.parametrize(
    "algorithm",  # so that a single rank, too, codes and averages
    [GradientAllReduce, partial(ByteGrad, compress_single_rank=True), partial(Decentralized, peers="all")],
)
def test_a_step_on_a_gpu_waits_for_nothing(algorithm: Any, tmp_path: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        device = torch.device("cuda", 0)
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)
        x = torch.randn(64, 512, device=device)
        comm = TorchComm.create("nccl", 60.0)
        with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm(), comm) as engine:

            def step() -> None:
                engine.module(x).square().mean().backward()
                engine.step()

            for _ in range(5):
                step()
            torch.cuda.synchronize()
            assert trace.traced(step) == []
            assert trace.nobody_waits(step) is None
            watched = trace.traced(lambda: (step(), torch.cuda.synchronize())[0])
            assert watched == ["cudaDeviceSynchronize"], "the trace does not show a wait"
    finally:
        dist.destroy_process_group()
