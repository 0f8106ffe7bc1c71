"""The group of ranks of the compiled transport, called through ctypes with the interpreter lock released."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from bagua_bench import libraries

NAME = "bagua_net"
"""The name by which torch.distributed knows the transport."""
ANY = -1
"""Instead of a rank: whoever sends."""
HANDLE = 128
"""Size in bytes of what a rank publishes so that others can connect."""
_P, _I, _L, _Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
_REMOTE = 6
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "open": (_P, [_I, _I, _P, _P, _Z]),
    "join": (_I, [_P, _P, _L]),
    "arrange": (_I, [_P, _P, _P, _I, _P]),
    "use_int8": (None, [_P]),
    "int8_bytes": (_Z, [_I, _Z, _I, _I]),
    "lossy": (None, [_P, _P]),
    "close": (None, [_P]),
    "abort": (None, [_P]),
    "error": (None, [_P, _P, _Z]),
    "describe": (None, [_P, _P, _Z]),
    "open_comm_report": (_I, [_I, _P, _I, _P, _Z]),
    "all_reduce": (_I, [_P, _P, _Z, _I, _I, _L]),
    "reduce": (_I, [_P, _P, _Z, _I, _I, _I, _L]),
    "broadcast": (_I, [_P, _P, _Z, _I, _L]),
    "all_gather": (_I, [_P, _P, _Z, _L]),
    "reduce_scatter": (_I, [_P, _P, _Z, _I, _I, _L]),
    "move": (_I, [_P, _P, _Z, _L]),
    "start": (ctypes.c_uint64, [_P, _I, _I, _P, _Z, ctypes.c_uint32]),
    "wait": (_I, [_P, ctypes.c_uint64, _L, ctypes.POINTER(_I), ctypes.POINTER(_I)]),
    "report": (_I, [_P, _I, _I, _P, _I]),
}


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


class _Piece(ctypes.Structure):
    _fields_ = (("peer", ctypes.c_int32), ("sending", ctypes.c_int32), ("data", _P), ("size", ctypes.c_uint64))


class StreamReport(ctypes.Structure):
    """The counters of one stream; see cpp/core/report.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("bytes_sent", "chunks_sent", "bytes_received", "chunks_received")),
        *((name, ctypes.c_uint64) for name in ("stalls", "parked", "queued", "queued_max", "retransmissions")),
        *((name, ctypes.c_uint64) for name in ("bytes_zero_copy", "in_use")),
        *((name, ctypes.c_double) for name in ("rate", "delivery_rate", "rtt", "min_rtt")),
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(libraries.plugin()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"bagua_net_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Group:
    """Ranks that are, or will be, connected. Errors of the network are RuntimeErrors with the text from C++."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.int8 = False
        """Whether large sums and averages of floats are lossy."""
        self._lib = _library()
        handle, error = ctypes.create_string_buffer(HANDLE), ctypes.create_string_buffer(500)
        self._group = self._lib.bagua_net_open(rank, size, handle, error, len(error))
        if not self._group:
            raise RuntimeError(f"bagua_net: {error.value.decode()}")
        self.handle = handle.raw

    def join(self, handles: Sequence[bytes], timeout: float) -> None:
        """Connect to all ranks; collective. `handles` in order of rank, `timeout` in seconds."""
        self._check("join", self._lib.bagua_net_join(self._group, b"".join(handles), _ns(timeout)))

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
        orders = ((_I * self.size)(*line), (_I * self.size)(*pairs))
        wrong = tree is not None and len(tree) != self.size
        parents = None if tree is None or wrong else (_I * self.size)(*tree)
        if wrong or self._lib.bagua_net_arrange(self._group, *orders, ring, parents):
            allowed = f"a parent of each of {self.size} ranks, -1 of the root"
            raise ValueError(f"bagua_net: tree={list(tree or [])}: allowed: {allowed}")

    def use_int8(self) -> None:
        """From now on large sums and averages of floats go as 8-bit integers: lossy. On all ranks, or on none."""
        self.int8 = True
        self._lib.bagua_net_use_int8(self._group)

    def int8_bytes(self, count: int, dtype: int, op: int) -> int:
        """Bytes that so many elements travel as in an all-reduce with `int8`; also of a group that is closed."""
        return int(self._lib.bagua_net_int8_bytes(self.size, count, dtype, op))

    def lossy(self) -> Lossy:
        """What was lossy so far. RuntimeError if the group is closed."""
        if not self._group:
            raise RuntimeError("bagua_net: the group has been closed")
        out = (ctypes.c_uint64 * len(Lossy._fields))()
        self._lib.bagua_net_lossy(self._group, out)
        return Lossy(*out)

    def close(self) -> None:
        """Close all connections; nothing may be pending."""
        group, self._group = self._group, None
        if group:
            self._lib.bagua_net_close(group)

    def abort(self) -> None:
        """Make everything pending fail; may be called from any thread."""
        if self._group:
            self._lib.bagua_net_abort(self._group)

    def all_reduce(self, address: int, count: int, dtype: int, op: int, timeout: float) -> None:
        """Reduce in place, to all."""
        self._check("all_reduce", self._lib.bagua_net_all_reduce(self._group, address, count, dtype, op, _ns(timeout)))

    def reduce(self, address: int, count: int, dtype: int, op: int, root: int, timeout: float) -> None:
        """Reduce in place, to the root."""
        code = self._lib.bagua_net_reduce(self._group, address, count, dtype, op, root, _ns(timeout))
        self._check("reduce", code)

    def broadcast(self, address: int, size: int, root: int, timeout: float) -> None:
        """`size` bytes from the root to all."""
        self._check("broadcast", self._lib.bagua_net_broadcast(self._group, address, size, root, _ns(timeout)))

    def all_gather(self, addresses: Sequence[int], size: int, timeout: float) -> None:
        """`size` bytes of every rank to its address; this rank's own block must be filled in already."""
        blocks = (_P * len(addresses))(*addresses)
        self._check("all_gather", self._lib.bagua_net_all_gather(self._group, blocks, size, _ns(timeout)))

    def reduce_scatter(self, address: int, count: int, dtype: int, op: int, timeout: float) -> None:
        """Blocks of `count` elements, all overwritten; this rank's own block becomes the result."""
        code = self._lib.bagua_net_reduce_scatter(self._group, address, count, dtype, op, _ns(timeout))
        self._check("reduce_scatter", code)

    def move(self, pieces: Iterable[Piece], timeout: float) -> None:
        """Move all pieces at once; those of one peer and direction go in order.

        This rank may send itself one piece, and receive it: it is copied while others are waited for.
        """
        items = [_Piece(*piece) for piece in pieces if piece.size > 0]
        array = (_Piece * len(items))(*items)
        self._check("move", self._lib.bagua_net_move(self._group, array, len(items), _ns(timeout)))

    def start(self, piece: Piece, tag: int) -> int:
        """Start a message between two ranks; returns a number to wait for."""
        number: int = self._lib.bagua_net_start(self._group, *piece, tag)
        if not number:
            raise ValueError(f"bagua_net: rank {piece.peer} is not another rank of this group of {self.size}")
        return number

    def wait(self, number: int, timeout: float) -> int | None:
        """The other rank, once the message has ended; None if it has not within this time. RuntimeError if it fails."""
        code, peer = _I(), _I()
        if not self._lib.bagua_net_wait(self._group, number, _ns(timeout), ctypes.byref(code), ctypes.byref(peer)):
            return None
        self._check("message", code.value)
        return peer.value

    def describe(self) -> str:
        """Streams and interfaces in use."""
        text = ctypes.create_string_buffer(500)
        self._lib.bagua_net_describe(self._group, text, len(text))
        return text.value.decode()

    def report(self, peer: int, lane: int = 0) -> list[dict[str, float]]:
        """Counters of the streams to a rank; lane 0 is the collectives', 1 the messages'."""
        return _reports(partial(self._lib.bagua_net_report, self._group, peer, lane))

    def _check(self, call: str, code: int) -> None:
        if code:
            text = ctypes.create_string_buffer(500)
            self._lib.bagua_net_error(self._group, text, len(text))
            raise RuntimeError(f"bagua_net {call}: {text.value.decode()}")


@cache
def announce(line: str) -> None:
    """Print a line on stderr once: users must see that the transport is on, but sub-groups would only repeat it."""
    print(line, file=sys.stderr, flush=True)


def report_plugin() -> dict[str, list[dict[str, float]]]:
    """Counters of the streams of every comm that NCCL has open in this process, by number and the peer's address."""
    found: dict[str, list[dict[str, float]]] = {}
    peer = ctypes.create_string_buffer(100)

    def ask(number: int, out: Any, most: int) -> int:
        return int(_library().bagua_net_open_comm_report(number, out, most, peer, len(peer)))

    while ask(len(found), None, 0) >= 0:
        values = _reports(partial(ask, len(found)))
        found[f"{len(found)} {peer.value.decode()}"] = values
    return found


def _reports(ask: Callable[..., int]) -> list[dict[str, float]]:
    """Counters of all streams. `ask` fills so many places of an array, and says how many streams there are."""
    out = (StreamReport * max(ask(None, 0), 0))()
    filled = out[: max(ask(out, len(out)), 0)]
    return [{name: getattr(one, name) for name, *_ in StreamReport._fields_} for one in filled]


def _ns(seconds: float) -> int:
    return int(min(seconds, 1e9) * 1e9)
