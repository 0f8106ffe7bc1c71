"""The group of ranks of the compiled transport."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

from bagua_bench.transport.abi import RawPiece, library, reports
from bagua_bench.transport.held import Held

NAME = "bagua_net"
"""The name by which torch.distributed knows the transport."""
ANY = -1
"""Instead of a rank: whoever sends."""
HANDLE = 128
"""Size in bytes of what a rank publishes so that others can connect."""
_TAGS = 2**31
_NOT_YET = -1
_REAPED = 4  # messages that nobody waits for, looked at whenever one is started


class Piece(NamedTuple):
    """Memory on its way to (`sending`) or from a rank."""

    peer: int
    sending: bool
    address: int
    size: int


class Lossy(NamedTuple):
    """All-reduces that went as 8-bit integers: how many, bytes of the floats in them, bytes this rank sent for them."""

    operations: int
    bytes: int
    sent: int


class Pending:
    """A message that was started: its number, and how it has ended, with which rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.code, self.peer = ctypes.c_int(_NOT_YET), ctypes.c_int()


class Group:
    """Ranks that are, or will be, connected. Errors of the network are RuntimeErrors with the text from C++.

    Any thread may close or abort it at any time; a call after that, or in a child process, is a RuntimeError.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.int8 = False
        """Whether large sums and averages of floats are lossy."""
        self._lib = library()
        handle, error = ctypes.create_string_buffer(HANDLE), ctypes.create_string_buffer(500)
        group = self._lib.bagua_net_open(rank, size, handle, error, len(error))
        if not group:
            raise RuntimeError(f"bagua_net: {error.value.decode()}")
        self.handle = handle.raw
        self._kept: dict[int, object] = {}  # memory of messages that have not ended
        self._dropped: deque[Pending] = deque()  # messages whose end nobody will ask for
        self._held = Held("bagua_net: the group", group, self._end)

    def _end(self, group: Any) -> None:
        self._lib.bagua_net_close(group)
        self._kept.clear()

    def join(self, handles: Sequence[bytes], timeout: float) -> None:
        """Connect to all ranks; collective. `handles` in order of rank, `timeout` in seconds."""
        self._do("join", b"".join(handles), _ns(timeout))

    def agreement(self) -> dict[str, str]:
        """By name, what must be the same on all ranks before they join."""
        lines = self._text("agree").splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def arrange(
        self, line: Sequence[int], pairs: Sequence[int], ring: bool = False, tree: Sequence[int] | None = None
    ) -> None:
        """Let collectives go through the ranks in these orders, which must be the same on all ranks.

        line: of rings and chains. pairs: of halving and doubling, in which ranks are partners whose places differ in
        one bit. ring: all-reduces go along a ring even where the number of ranks allows halving. tree: the parents of
        all ranks, -1 of the root: all-reduces of 512 KiB or more go along this tree, unless they are lossy. ValueError
        if one of them is not an order, or not a tree, of all ranks.
        """
        for name, order in (("line", line), ("pairs", pairs)):
            if sorted(order) != list(range(self.size)):
                raise ValueError(f"bagua_net: {name}={list(order)}: allowed: each of {self.size} ranks once")
        orders = ((ctypes.c_int * self.size)(*line), (ctypes.c_int * self.size)(*pairs))
        wrong = tree is not None and len(tree) != self.size
        parents = None if tree is None or wrong else (ctypes.c_int * self.size)(*tree)
        if wrong or self._call("arrange", *orders, ring, parents):
            allowed = f"a parent of each of {self.size} ranks, -1 of the root"
            raise ValueError(f"bagua_net: tree={list(tree or [])}: allowed: {allowed}")

    def use_int8(self) -> None:
        """From now on large sums and averages of floats go as 8-bit integers: lossy. On all ranks, or on none."""
        self.int8 = True
        self._call("use_int8")

    def int8_bytes(self, count: int, dtype: int, op: int) -> int:
        """Bytes that so many elements travel as in an all-reduce with `int8`; also of a group that is closed."""
        return int(self._lib.bagua_net_int8_bytes(self.size, count, dtype, op))

    def lossy(self) -> Lossy:
        """What was lossy so far."""
        out = (ctypes.c_uint64 * len(Lossy._fields))()
        self._call("lossy", out)
        return Lossy(*out)

    def close(self) -> None:
        """Close all connections, once no call is in progress any more."""
        self._held.close()

    def abort(self) -> None:
        """Make everything pending fail."""
        self._held.tell(self._lib.bagua_net_abort)

    def all_reduce(self, address: int, count: int, dtype: int, op: int, timeout: float) -> None:
        """Reduce in place, to all."""
        self._do("all_reduce", address, count, dtype, op, _ns(timeout))

    def reduce(self, address: int, count: int, dtype: int, op: int, root: int, timeout: float) -> None:
        """Reduce in place, to the root."""
        self._do("reduce", address, count, dtype, op, root, _ns(timeout))

    def broadcast(self, address: int, size: int, root: int, timeout: float) -> None:
        """`size` bytes from the root to all."""
        self._do("broadcast", address, size, root, _ns(timeout))

    def all_gather(self, addresses: Sequence[int], size: int, timeout: float) -> None:
        """`size` bytes of every rank to its address; this rank's own block must be filled in already."""
        self._do("all_gather", (ctypes.c_void_p * self.size)(*addresses), size, _ns(timeout))

    def reduce_scatter(self, address: int, count: int, dtype: int, op: int, timeout: float) -> None:
        """Blocks of `count` elements, all overwritten; this rank's own block becomes the result."""
        self._do("reduce_scatter", address, count, dtype, op, _ns(timeout))

    def move(self, pieces: Iterable[Piece], timeout: float) -> None:
        """Move all pieces at once; those of one peer and direction go in order.

        This rank may send itself one piece, and receive it: it is copied while others are waited for.
        """
        items = [RawPiece(*piece) for piece in pieces if piece.size > 0]
        array = (RawPiece * len(items))(*items)
        self._do("move", array, len(items), _ns(timeout))

    def start(self, piece: Piece, tag: int, memory: object) -> Pending:
        """Start a message between two ranks. `memory` is kept until it has ended."""
        if not (piece.peer in range(self.size) or piece.peer == ANY) or piece.peer == self.rank:
            raise ValueError(f"bagua_net: rank {piece.peer} is not another rank of this group of {self.size}")
        if tag not in range(_TAGS):
            raise ValueError(f"bagua_net: tag {tag}: allowed: 0 to {_TAGS - 1}")
        if self._dropped:
            self._reap()
        with self._held as group:
            number: int = self._lib.bagua_net_start(group, *piece, tag)
            if not number:
                raise RuntimeError(f"bagua_net start: {self._error()}")
            self._kept[number] = memory
        return Pending(number)

    def wait(self, message: Pending, timeout: float) -> int | None:
        """The other rank, once the message has ended; None if it has not within this time. RuntimeError if it fails.

        It may be asked again, but not by two threads at a time.
        """
        code, peer = message.code, message.peer
        with self._held as group:
            if code.value == _NOT_YET and not self._lib.bagua_net_wait(
                group, message.number, _ns(timeout), ctypes.byref(code), ctypes.byref(peer)
            ):
                return None
            self._kept.pop(message.number, None)
            if code.value:
                raise RuntimeError(f"bagua_net message: {self._error()}")
            return peer.value

    def drop(self, message: Pending) -> None:
        """Nobody will ask how this message ends; from any thread, at any time."""
        self._dropped.append(message)

    def _reap(self) -> None:
        with suppress(IndexError):  # others do it, too
            for _ in range(min(len(self._dropped), _REAPED)):
                message = self._dropped.popleft()
                with suppress(RuntimeError):
                    if self.wait(message, 0) is None:
                        self._dropped.append(message)

    def describe(self) -> str:
        """Streams and interfaces in use."""
        return self._text("describe")

    def report(self, peer: int, lane: int = 0) -> list[dict[str, float]]:
        """Counters of the streams to a rank; lane 0 is the collectives', 1 the messages'."""
        if peer not in range(self.size) or lane not in range(2):
            raise ValueError(f"bagua_net: no lane {lane} of rank {peer} in this group of {self.size}")
        return reports(partial(self._call, "report", peer, lane))

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._held as group:
            return getattr(self._lib, f"bagua_net_{name}")(group, *arguments)

    def _do(self, name: str, *arguments: Any) -> None:
        with self._held as group:
            if getattr(self._lib, f"bagua_net_{name}")(group, *arguments):
                raise RuntimeError(f"bagua_net {name}: {self._error()}")

    def _error(self) -> str:
        """Of this thread's last call that failed."""
        text = ctypes.create_string_buffer(500)
        self._lib.bagua_net_error(text, len(text))
        return text.value.decode()

    def _text(self, name: str) -> str:
        text = ctypes.create_string_buffer(500)
        self._call(name, text, len(text))
        return text.value.decode()


@cache
def announce(line: str) -> None:
    """Print a line on stderr once: users must see that the transport is on, but sub-groups would only repeat it."""
    print(line, file=sys.stderr, flush=True)


def _ns(seconds: float) -> int:
    return int(min(seconds, 1e9) * 1e9)
