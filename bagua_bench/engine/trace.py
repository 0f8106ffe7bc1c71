"""Notes what a rank does when, for a trace of its steps (docs/trace.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from algorithms.base import Bucket
from bagua_bench.comm import CountedComm
from bagua_bench.engine.asynchronous import AveragingLoop
from bagua_bench.engine.lanes import Channels
from bagua_bench.engine.stopwatch import seconds_between, stamp
from bagua_bench.engine.streams import open_channels
from bagua_bench.results.result import AVERAGING, TRAINING, Carried, Span, channel_track, in_order

_CALLS = frozenset(
    (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_to_all",
        "all_gather",
        "gather_ragged",
        "reduce_scatter",
        "exchange",
        "send_receive",
    )
)
"""Calls of a communicator that take time."""


Counts = Mapping[str, Sequence[Mapping[str, float]]]
"""What a transport counts so far: of every stream, by peer."""


class Trace:
    """What one rank does from `start` on. Its threads may note at the same time.

    On a GPU the times are those at which its streams come to the beginning and the end.
    streams: what the transport counts; None if it does not.
    """

    def __init__(self, device: torch.device, streams: Callable[[], Counts | None] = lambda: None) -> None:
        self._device, self._streams = device, streams
        self._counted: tuple[float, Mapping[str, Sequence[tuple[float, float]]]] = 0.0, {}
        self._began = 0.0
        self._carried: list[Carried] = []
        self._zero: Any = None
        self._found: list[tuple[str, str, Any, Any, dict[str, Any]]] = []
        self._phases: list[Span] = []

    def start(self, at: Any = None) -> None:
        """Time is counted from here, or from a stamp on; what began before is left out."""
        self._found, self._phases, self._carried = [], [], []
        self._began = time.perf_counter() if at is None or self._device.type != "cpu" else at
        self._counted = time.perf_counter(), self._totals()
        self._zero = stamp(self._device) if at is None else at

    def add(self, track: str, name: str, begin: Any, end: Any, **about: Any) -> None:
        """Note something that has happened between two stamps."""
        if self._zero is not None:
            self._found.append((track, name, begin, end, about))

    @contextmanager
    def noted(self, track: str, name: str, **about: Any) -> Iterator[None]:
        """Note what happens inside."""
        begin = stamp(self._device)
        yield
        self.add(track, name, begin, stamp(self._device), **about)

    def phase(self, name: str, begin: Any, end: Any) -> None:
        """Note a part of a step, or a whole one, of the training thread, which is over: its stamps may be reused."""
        if self._zero is not None:
            self._phases.append(self._span(TRAINING, name, begin, end, {}))

    def step_taken(self) -> None:
        """Note what the transport has sent since the last step, or since the start."""
        if self._zero is None:
            return
        since, before = self._counted
        now, totals = self._counted = time.perf_counter(), self._totals()
        for peer, counted in totals.items():
            pairs = list(zip_longest(counted, before.get(peer, ()), fillvalue=(0.0, 0.0)))
            sent, again = (tuple(max(0.0, one[k] - old[k]) for one, old in pairs) for k in (0, 1))
            if any(sent) or any(again):
                self._carried.append(Carried(peer, since - self._began, now - since, sent, again))

    def _totals(self) -> dict[str, list[tuple[float, float]]]:
        """Bytes, and segments that were sent again, on every stream to every peer so far."""
        counts = self._streams() or {}
        return {peer: [(one["bytes_sent"], one["retransmissions"]) for one in each] for peer, each in counts.items()}

    def carried(self) -> tuple[Carried, ...]:
        """What the transport has sent in every step."""
        return tuple(self._carried)

    def spans(self) -> tuple[Span, ...]:
        """What was noted, by the time at which it began; what contains something goes before it."""
        spans = [*self._phases, *(self._span(*noted) for noted in self._found)]
        return in_order([span for span in spans if span.begin >= 0])

    def _span(self, track: str, name: str, begin: Any, end: Any, about: dict[str, Any]) -> Span:
        since = seconds_between(self._zero, begin, self._device)
        return Span(track, name, since, seconds_between(begin, end, self._device), **about)

    def channels(self, comm: CountedComm, number: int, device: torch.device) -> Channels:
        """Channels whose work is noted; to be an engine's `lanes`."""
        return _Channels(open_channels(comm, number, device), self)

    def averaging(self, comm: Any, device: torch.device, pause: float, *work: Callable[[], None]) -> AveragingLoop:
        """A loop whose rounds are noted; to be an engine's `averaging`."""

        def within(name: str, piece: Callable[[], None]) -> None:
            with self.noted(AVERAGING, name):
                piece()

        names = ("snapshot", "exchange", "apply")
        return AveragingLoop(comm, device, pause, *map(partial, [within] * 3, names, work))


class _Channels(Channels):
    def __init__(self, plain: Channels, trace: Trace) -> None:
        super().__init__(plain._lanes, plain._comms)
        self._trace = trace

    def submit(self, key: int, work: Callable[[CountedComm], None]) -> None:
        super().submit(key, partial(self._noted, channel_track(key % self.number), work))

    def _noted(self, track: str, work: Callable[[CountedComm], None], comm: CountedComm) -> None:
        bucket = next((one for one in getattr(work, "args", ()) if isinstance(one, Bucket)), None)
        name = "other" if bucket is None else f"bucket {bucket.name}"
        with self._trace.noted(track, name):
            work(_Noting(comm, self._trace, track, "flat"))  # type: ignore[arg-type]


class _Noting:
    """A communicator whose calls are noted."""

    def __init__(self, comm: CountedComm, trace: Trace, track: str, level: str) -> None:
        self._comm, self._trace, self._track, self._level = comm, trace, track, level
        self.intra = comm.intra and _Noting(comm.intra, trace, track, "intra")
        self.inter = comm.inter and _Noting(comm.inter, trace, track, "inter")

    def subgroup(self, ranks: Any) -> _Noting:
        return _Noting(self._comm.subgroup(ranks), self._trace, self._track, self._level)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return partial(self._call, name, found) if name in _CALLS and self._comm.size > 1 else found

    def _call(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        x = [*arguments, *options.values()][0]
        nbytes = x.nbytes if isinstance(x, Tensor) else sum(sent.nbytes for _, sent in x)
        with self._trace.noted(self._track, name, nbytes=nbytes, level=self._level):
            return call(*arguments, **options)


def common_moment(device: torch.device) -> float | None:
    """A moment before the first timed step, on the clock of all ranks; None where they have none in common; collective.

    All have told their time when the first one goes on.
    """
    machine = Path("/proc/sys/kernel/random/boot_id")
    own = (machine.read_text() if machine.exists() else None, time.perf_counter())
    found: list[Any] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    together = own[0] is not None and len({boot for boot, _ in found}) == 1 and device.type == "cpu"
    return max(at for _, at in found) if together else None
