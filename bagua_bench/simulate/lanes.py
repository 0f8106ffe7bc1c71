"""The engine's channels under the virtual clock. No torch import.

Each channel works through its operations in order. Operations of different channels share the line: their bytes follow
each other, and their latencies pass side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from bagua_bench.machine.program import Collective, Operation


@dataclass
class _Piece:
    """Work that was submitted; `at` becomes the time at which each class is done with it."""

    ops: list[Operation]
    at: list[float]


@dataclass
class _Channel:
    pieces: list[_Piece]
    begun: int = 0
    """Pieces of which every operation has begun."""
    landed: int = 0
    """Pieces that were waited for."""
    at: list[float] = field(default_factory=list)
    """When each class is done with what has begun."""

    def copy(self) -> _Channel:
        waiting = [_Piece(list(piece.ops), list(piece.at)) for piece in self.pieces[self.begun :]]
        return _Channel([*self.pieces[: self.begun], *waiting], self.begun, self.landed, list(self.at))


class Lanes:
    """Lanes that begin `left` behind: of every channel, when each class will be done with pieces of earlier steps.

    duration: seconds of an operation on a class. on_the_line: of a collective, seconds in which no other's bytes are
    on the line.
    """

    def __init__(
        self,
        left: Sequence[Sequence[list[float]]],
        classes: int,
        duration: Callable[[Operation, int], float],
        on_the_line: Callable[[Collective], float],
    ) -> None:
        self._duration, self._on_the_line = duration, on_the_line
        self._classes = range(classes)
        self._line = {"intra": 0.0, "inter": 0.0}
        self._channels = [
            _Channel([_Piece([], at) for at in pieces], len(pieces), at=list(pieces[-1]) if pieces else [0.0] * classes)
            for pieces in left
        ]
        self._foreseen: list[_Channel] | None = None

    def submit(self, ops: Sequence[Operation], channel: int, ready: Sequence[float]) -> None:
        """Queue work. What begins before it can is settled; what begins later may have to share the line with it."""
        self._settle(min(ready) if len(self._channels) > 1 else inf)
        self._channels[channel].pieces.append(_Piece(list(ops), list(ready)))
        self._foreseen = None

    def end(self, k: int) -> float:
        """When class k will be done with everything that is queued."""
        return max(channel.at[k] for channel in self._future())

    def wait(self, channel: int, behind: int) -> list[float]:
        """When each class will be done with all but the last `behind` pieces of a channel."""
        own, place = self._channels[channel], len(self._channels[channel].pieces) - behind
        own.landed = max(own.landed, place)
        return list(self._future()[channel].pieces[place - 1].at) if place > 0 else [0.0 for _ in self._classes]

    def left(self, now: Sequence[float]) -> list[list[list[float]]]:
        """Of the pieces that nobody has waited for: how long after `now` each class is done with them."""
        pieces = [(future.pieces[own.landed :]) for future, own in zip(self._future(), self._channels, strict=True)]
        return [[[end - at for end, at in zip(piece.at, now, strict=True)] for piece in own] for own in pieces]

    def _future(self) -> list[_Channel]:
        """The channels as they will be, if nothing else comes."""
        if self._foreseen is None:
            if len(self._channels) == 1:
                self._settle(inf)
                self._foreseen = self._channels
            else:
                kept, line = self._channels, dict(self._line)
                self._channels = [channel.copy() for channel in kept]
                self._settle(inf)
                self._foreseen, self._channels, self._line = self._channels, kept, line
        return self._foreseen

    def _settle(self, until: float) -> None:
        """Begin operations in the order of their times, as long as these lie before `until`."""
        while waiting := [channel for channel in self._channels if channel.begun < len(channel.pieces)]:
            first = min(waiting, key=self._begins)
            if self._begins(first) >= until:
                return
            self._begin(first)

    def _begins(self, channel: _Channel) -> float:
        piece = channel.pieces[channel.begun]
        return max(max(ready, at) for ready, at in zip(piece.at, channel.at, strict=True))

    def _begin(self, channel: _Channel) -> None:
        piece = channel.pieces[channel.begun]
        at = [max(ready, own) for ready, own in zip(piece.at, channel.at, strict=True)]
        if piece.ops:
            op = piece.ops.pop(0)
            if isinstance(op, Collective):
                at = [self._collective(op, max(at))] * len(at)
            else:
                at = [own + self._duration(op, k) for k, own in enumerate(at)]
        channel.at = at
        if piece.ops:
            piece.at = list(at)
        else:
            piece.at = at
            channel.begun += 1

    def _collective(self, op: Collective, meet: float) -> float:
        busy = self._on_the_line(op) if len(self._channels) > 1 else 0.0
        place = "intra" if op.level == "intra" else "inter"
        self._line[place] = max(meet, self._line[place]) + busy
        return max(meet + self._duration(op, 0), self._line[place]) if busy else meet + self._duration(op, 0)
