"""The engine's channels under the virtual clock. No torch import.

Each channel works through its operations in order. Operations of different channels share the line: their bytes follow
each other, and their latencies pass side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from bagua_bench.machine.program import Collective, Operation

Left = tuple[int, list[float]]
"""A channel, and how long each class will take until it is done with a piece of work there."""


@dataclass(frozen=True)
class Noted:
    """What a channel has done: an operation, or a whole piece of work with this key. When, for each class."""

    channel: int
    what: Operation | int
    begin: list[float]
    end: list[float]


@dataclass(eq=False)
class _Piece:
    """Work that was submitted to a channel."""

    channel: int
    key: int
    ops: deque[Operation]
    at: list[float]
    """When each class can begin the first of `ops`; once there are none left, when it is done."""
    begun: list[float] | None = None


@dataclass
class _State:
    """Work that has not begun, and when each class is done with what has; by channel. When the line is free."""

    queues: list[deque[_Piece]]
    at: list[list[float]]
    line: dict[str, float] = field(default_factory=lambda: {"intra": 0.0, "inter": 0.0})
    noted: list[Noted] | None = None

    def copy(self) -> _State:
        queues = [deque(_Piece(p.channel, p.key, p.ops.copy(), p.at, p.begun) for p in queue) for queue in self.queues]
        noted = None if self.noted is None else list(self.noted)
        return _State(queues, list(self.at), dict(self.line), noted)


class Lanes:
    """Lanes of so many channels, with work `left` from earlier steps.

    duration: seconds of an operation on a class. own_bytes: seconds in which only a collective's bytes are on the line.
    note: keep what was done when.
    """

    def __init__(
        self,
        left: Sequence[Left],
        channels: int,
        classes: int,
        duration: Callable[[Operation, int], float],
        own_bytes: Callable[[Collective], float],
        note: bool = False,
    ) -> None:
        self._duration, self._own_bytes, self._channels = duration, own_bytes, range(channels)
        self._pieces = [_Piece(channel, 0, deque(), at) for channel, at in left]
        self._landed = 0  # pieces that were waited for
        ends = {piece.channel: piece.at for piece in self._pieces}
        self._now = _State(
            [deque() for _ in self._channels],
            [ends.get(c, [0.0] * classes) for c in self._channels],
            noted=[] if note else None,
        )
        self._foreseen: tuple[_State, list[list[float]]] | None = None

    def submit(self, ops: Sequence[Operation], key: int, ready: Sequence[float]) -> None:
        """Queue work. What begins before it can is settled; what begins later may have to share the line with it."""
        piece = _Piece(key % len(self._channels), key, deque(ops), list(ready))
        if len(self._channels) > 1:
            self._settle(self._now, min(ready))
        self._pieces.append(piece)
        self._now.queues[piece.channel].append(piece)
        self._foreseen = None
        if len(self._channels) == 1:
            self._settle(self._now, inf)

    def end(self, k: int) -> float:
        """When class k will be done with everything that is queued."""
        return max(at[k] for at in self._future()[0].at)

    def wait(self, behind: int) -> list[float]:
        """When each class will be done with all but the last `behind` pieces."""
        place = len(self._pieces) - behind
        self._landed = max(self._landed, place)
        ends, last = self._future()[1], {self._pieces[k].channel: k for k in range(place)}
        return [max((ends[k][one] for k in last.values()), default=0.0) for one in range(len(self._now.at[0]))]

    def left(self, now: Sequence[float]) -> list[Left]:
        """The pieces that nobody has waited for: how long after `now` each class is done with them."""
        waited, ends = self._landed, self._future()[1]
        return [
            (piece.channel, [end - at for end, at in zip(own, now, strict=True)])
            for piece, own in zip(self._pieces[waited:], ends[waited:], strict=True)
        ]

    def noted(self) -> list[Noted]:
        """What was done when, if nothing else comes."""
        return self._future()[0].noted or []

    def _future(self) -> tuple[_State, list[list[float]]]:
        """The lanes when all is done, and when each piece is, if nothing else comes."""
        if self._foreseen is None:
            future = self._now.copy()
            coming = {id(old): new for old, new in zip(_all(self._now), _all(future), strict=True)}
            self._settle(future, inf)
            self._foreseen = future, [coming.get(id(piece), piece).at for piece in self._pieces]
        return self._foreseen

    def _settle(self, state: _State, until: float) -> None:
        """Begin operations in the order of their times, as long as these lie before `until`."""
        ready = {channel: _ready(state, channel) for channel, queue in enumerate(state.queues) if queue}
        meet = {channel: max(begin) for channel, begin in ready.items()}
        while meet:
            first = min(meet, key=meet.__getitem__)  # of several at a time the lowest channel
            if meet[first] >= until:
                return
            self._begin(state, first, ready[first])
            if state.queues[first]:
                ready[first] = begin = _ready(state, first)
                meet[first] = max(begin)
            else:
                del meet[first]

    def _begin(self, state: _State, channel: int, begin: list[float]) -> None:
        piece, at = state.queues[channel][0], begin
        if piece.begun is None:
            piece.begun = begin
        if piece.ops:
            op = piece.ops.popleft()
            if isinstance(op, Collective):
                at = [self._collective(state, op, max(at))] * len(at)
            else:
                at = [own + self._duration(op, k) for k, own in enumerate(at)]
            if state.noted is not None:
                state.noted.append(Noted(channel, op, begin, at))
        state.at[channel] = piece.at = at
        if not piece.ops:
            state.queues[channel].popleft()
            if state.noted is not None:
                state.noted.append(Noted(channel, piece.key, piece.begun, at))

    def _collective(self, state: _State, op: Collective, meet: float) -> float:
        end = meet + self._duration(op, 0)
        if len(self._channels) == 1:
            return end
        place = "intra" if op.level == "intra" else "inter"
        state.line[place] = max(meet, state.line[place]) + self._own_bytes(op)
        return max(end, state.line[place])


def _all(state: _State) -> list[_Piece]:
    return [piece for queue in state.queues for piece in queue]


def _ready(state: _State, channel: int) -> list[float]:
    """When each class can begin the next operation of a channel."""
    return list(map(max, state.queues[channel][0].at, state.at[channel]))
