"""The C interface of the compiled transport (cpp/collectives/group.h), called with the interpreter lock released."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from bagua_bench import libraries

_P, _I, _L, _Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "open": (_P, [_I, _I, _P, _P, _Z]),
    "join": (_I, [_P, _P, _L]),
    "agree": (None, [_P, _P, _Z]),
    "arrange": (_I, [_P, _P, _P, _I, _P]),
    "use_int8": (None, [_P]),
    "int8_bytes": (_Z, [_I, _Z, _I, _I]),
    "lossy": (None, [_P, _P]),
    "close": (None, [_P]),
    "abort": (None, [_P]),
    "error": (None, [_P, _Z]),
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


class RawPiece(ctypes.Structure):
    """Memory on its way to or from a rank."""

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
def library() -> ctypes.CDLL:
    """The compiled transport, with the types of its functions."""
    found = ctypes.CDLL(str(libraries.plugin()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, f"bagua_net_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def report_plugin() -> dict[str, list[dict[str, float]]]:
    """Counters of the streams of every comm that NCCL has open in this process, by number and the peer's address."""
    found: dict[str, list[dict[str, float]]] = {}
    peer = ctypes.create_string_buffer(100)

    def ask(number: int, out: Any, most: int) -> int:
        return int(library().bagua_net_open_comm_report(number, out, most, peer, len(peer)))

    while ask(len(found), None, 0) >= 0:
        values = reports(partial(ask, len(found)))
        found[f"{len(found)} {peer.value.decode()}"] = values
    return found


def reports(ask: Callable[..., int]) -> list[dict[str, float]]:
    """Counters of all streams. `ask` fills so many places of an array, and says how many streams there are."""
    out = (StreamReport * max(ask(None, 0), 0))()
    filled = out[: max(ask(out, len(out)), 0)]
    return [{name: getattr(one, name) for name, *_ in StreamReport._fields_} for one in filled]
