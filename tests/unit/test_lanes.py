"""The communication thread."""

from __future__ import annotations

import threading
import time

import pytest

from bagua_bench.engine.lanes import ThreadLane


def test_work_runs_in_order_beside_the_caller() -> None:
    lane, gate, done = ThreadLane(), threading.Event(), []
    lane.submit(gate.wait)
    for i in range(5):
        lane.submit(lambda i=i: done.append(i))  # type: ignore[misc]
    assert done == []
    gate.set()
    lane.wait()
    assert done == [0, 1, 2, 3, 4]
    lane.close()


def test_a_failure_is_raised_by_wait_and_drops_what_follows() -> None:
    lane, done = ThreadLane(), []

    def fail() -> None:
        raise ValueError("lost")

    lane.submit(fail)
    lane.submit(lambda: done.append(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="lost"):
            lane.wait()
    assert done == []


def test_close_drops_queued_work_and_ends_the_thread() -> None:
    lane, gate, started, done = ThreadLane(), threading.Event(), threading.Event(), []

    def first() -> None:
        started.set()
        gate.wait()

    lane.submit(first)
    lane.submit(lambda: done.append(1))
    started.wait()
    closing = threading.Thread(target=lane.close)
    closing.start()
    with pytest.raises(RuntimeError, match="the lane is closed"):
        while True:
            lane.submit(lambda: done.append(2))
            time.sleep(0.001)
    gate.set()  # once it is being closed
    closing.join(60)
    lane.thread.join(60)
    assert not lane.thread.is_alive()
    assert done == []
