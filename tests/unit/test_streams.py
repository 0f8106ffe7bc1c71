"""CUDA streams of the engine: the order of waits with recorded calls on any machine, the real thing on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from bagua_bench.comm.devices import environment
from bagua_bench.engine.lanes import ThreadLane
from bagua_bench.engine.stopwatch import Stopwatch
from bagua_bench.engine.streams import OneSide, StreamLane, StreamSides, lane_for, sides_for

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GPU = torch.device("cuda", 0)


class Recorder:
    """Stands in for torch.cuda's streams: who waited for whom, and where work ran."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = Stream(self, "training")
        self.made = 0

    def make_stream(self, device: object, priority: int = 0) -> Stream:
        self.made += 1
        return Stream(self, f"side{self.made}")

    def make_event(self, enable_timing: bool = False) -> Event:
        return Event(self)

    @contextmanager
    def inside(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def work(self, name: str) -> None:
        self.calls.append(f"{name} on {self.current.name}")


class Stream:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def wait_stream(self, other: Stream) -> None:
        self.recorder.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.recorder.calls.append(f"{self.name} waits for what was on {event.where}")

    def synchronize(self) -> None:
        self.recorder.calls.append(f"host waits for {self.name}")


class Event:
    where = "nothing"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def record(self, stream: Stream | None = None) -> None:
        self.where = (stream or self.recorder.current).name


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "Stream", recorder.make_stream)
    monkeypatch.setattr(torch.cuda, "Event", recorder.make_event)
    monkeypatch.setattr(torch.cuda, "stream", recorder.inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: recorder.current)
    return recorder


def test_work_waits_for_its_inputs_and_only_streams_wait_for_work(cuda: Recorder) -> None:
    lane = lane_for(GPU)
    for name in "ab":
        lane.submit(lambda name=name: cuda.work(name))  # type: ignore[misc]
    lane.wait()
    lane.close()
    lane.submit(lambda: cuda.work("dropped"))
    assert cuda.calls == [
        "side1 waits for training", "a on side1", "side1 waits for training", "b on side1",
        "training waits for what was on side1", "training waits for side1",
    ]  # fmt: skip


def test_waiting_for_a_mark_is_waiting_for_what_was_launched_before_it(cuda: Recorder) -> None:
    lane = lane_for(GPU)
    lane.submit(lambda: cuda.work("a"))
    mark = lane.mark()
    lane.submit(lambda: cuda.work("b"))
    lane.wait(mark)
    assert cuda.calls[-1] == "training waits for what was on side1"


def test_what_a_launch_raises_is_raised_by_wait_and_drops_what_follows(cuda: Recorder) -> None:
    lane = StreamLane(GPU)

    def fail() -> None:
        raise ValueError("lost")

    lane.submit(fail)
    lane.submit(lambda: cuda.work("behind"))
    for _ in range(2):
        with pytest.raises(ValueError, match="lost"):
            lane.wait()
    assert "behind on side1" not in cuda.calls


def test_an_averaging_round_touches_weights_in_the_stream_of_training_alone(cuda: Recorder) -> None:
    sides = sides_for(GPU)
    with cuda.inside(Stream(cuda, "another thread's")):
        with sides.on_weights():
            cuda.work("snapshot")
        with sides.beside():
            cuda.work("exchange")
        with sides.on_weights():
            cuda.work("apply")
    assert cuda.calls == [
        "snapshot on training", "side1 waits for what was on training", "exchange on side1", "host waits for side1",
        "apply on training",
    ]  # fmt: skip


def test_cpu_has_a_thread_and_one_side() -> None:
    lane = lane_for(torch.device("cpu"))
    assert isinstance(lane, ThreadLane)
    lane.close()
    assert isinstance(sides_for(torch.device("cpu")), OneSide)


@NEEDS_GPU
def test_lane_on_a_gpu_orders_work_without_the_host() -> None:
    lane, x = StreamLane(GPU), torch.zeros(2**24, device=GPU)
    for _ in range(20):
        x.add_(1)
        lane.submit(lambda: x.mul_(2))
        lane.wait()
    expected = 0.0
    for _ in range(20):
        expected = (expected + 1) * 2
    assert torch.equal(x, torch.full_like(x, expected))
    lane.close()


@NEEDS_GPU
def test_sides_on_a_gpu_keep_snapshot_and_delta_consistent() -> None:
    sides, x = StreamSides(GPU), torch.zeros(2**22, device=GPU)
    for _ in range(10):
        x.add_(1)
        with sides.on_weights():
            copy = x.clone()
        x.add_(1)  # training goes on
        with sides.beside():
            mean = copy * 0.5
        with sides.on_weights():
            x.add_(mean - copy)
    expected = 0.0
    for _ in range(10):
        expected = (expected + 1) * 0.5 + 1
    assert torch.equal(x, torch.full_like(x, expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_clock_splits_a_step_into_its_phases(device: str) -> None:
    clock = Stopwatch(torch.device(device))
    for phase in ("forward", "backward", "forward", "communication", "optimizer"):
        clock.mark(phase)
    seconds = clock.stop()
    assert all(value >= 0 for value in seconds.values())
    parts = sum(value for phase, value in seconds.items() if phase != "step")
    assert parts == pytest.approx(seconds["step"], rel=1e-3, abs=1e-5)


def test_ranks_on_one_gpu_claim_hosts_of_their_own() -> None:
    assert environment(["a", "b"], 0) == {}
    shared: list[dict[str, Any]] = [environment(["a", "a"], rank) for rank in range(2)]
    assert shared[0]["NCCL_HOSTID"] != shared[1]["NCCL_HOSTID"]
    assert shared[0]["NCCL_MNNVL_ENABLE"] == "0", "it would override the host's name"
