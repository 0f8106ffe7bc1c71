"""CUDA streams run communication beside computation on a GPU; events order them, the training thread never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from bagua_bench.comm import CountedComm
from bagua_bench.engine.lanes import Channels, Lane, ThreadLane


def lane_for(device: torch.device) -> Lane:
    """The lane for communication beside computation on `device`."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane()


def open_channels(comm: CountedComm, number: int, device: torch.device) -> Channels:
    """So many channels for a model on `device`; collective. ValueError for fewer than one."""
    if number < 1:
        raise ValueError(f"channels={number}: must be at least 1")
    return Channels([lane_for(device) for _ in range(number)], comm.channels(number))


class StreamLane:
    """A `Lane` that is a stream: the caller launches work at once, and it runs behind the work that it depends on.

    `wait` makes the caller's stream wait, not the host; a mark is an event. An error of a launch is kept for `wait`,
    and the work behind it is dropped: collectives would not match any more.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._error: BaseException | None = None
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        if self._error is not None or self._closed:
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                work()
        except BaseException as error:
            self._error = error

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, mark: torch.cuda.Event | None = None) -> None:
        if self._error is not None:
            raise self._error
        torch.cuda.current_stream(self._device).wait_event(self.mark() if mark is None else mark)

    def close(self) -> None:
        self._closed = True
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Sides(Protocol):
    """The places of an averaging loop's two sides: next to the weights, and beside training."""

    def on_weights(self) -> AbstractContextManager[None]:
        """For what reads or writes the weights; in the order in which the host gets here."""

    def beside(self) -> AbstractContextManager[None]:
        """For communication; sees what was done `on_weights` before, and has ended when the context ends."""


class OneSide:
    """On the CPU, where work is done when the call returns."""

    def on_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()


class StreamSides:
    """Everything that touches the weights is launched into the stream of training, whichever thread launches it.

    Locks on the host then give the order on the GPU as well: a snapshot or a result lands between two launches of
    training, and no stream waits for another one's communication. The averaging thread alone waits for it.
    Made by the training thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._training = torch.cuda.current_stream(device)
        self._beside = torch.cuda.Stream(device, priority=-1)
        self._done = torch.cuda.Event()
        self._done.record(self._training)

    @contextmanager
    def on_weights(self) -> Iterator[None]:
        with torch.cuda.stream(self._training):
            yield
            self._done.record(self._training)

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._beside.wait_event(self._done)
        with torch.cuda.stream(self._beside):
            yield
        self._beside.synchronize()


def sides_for(device: torch.device) -> Sides:
    """Made by the training thread, before it launches work on the weights."""
    return StreamSides(device) if device.type == "cuda" else OneSide()
