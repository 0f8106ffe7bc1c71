"""The rules of the link emulator, as the tests call them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest

from bagua_bench.configuration.network_shape import Link
from bagua_bench.network import relay
from bagua_bench.network.relay import Swing

if not relay.LIBRARY.exists():
    pytest.skip(f"the link emulator {relay.NOT_BUILT}", allow_module_level=True)

_P, _D, _I, _L, _Z = ctypes.c_void_p, ctypes.c_double, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "relay_wire_bytes": (_L, [_L]),
    "line_new": (_P, [_D, _L, Swing]),
    "line_send": (_I, [_P, _D, _L, _P]),
    "flows_new": (_P, [_P, _Z, _P, _Z, _L]),
    "flows_leave": (_I, [_P, _D, ctypes.c_char_p, _Z, _L, _P]),
    "port_new": (_P, [_P]),
    "port_leave": (_I, [_P, _D, _L, _D, _P]),
    "port_arrive": (_I, [_P, _D, _D, _L, _P]),
    "port_survivors": (_I, [_P, _I, _P]),
    "port_lost": (_L, [_P]),
    "segments_count": (_I, [ctypes.c_char_p, _Z, _Z]),
    "segments_cut": (_Z, [ctypes.c_char_p, _Z, _Z, _I, _I, _P]),
    "line_delete": (None, [_P]),
    "flows_delete": (None, [_P]),
    "port_delete": (None, [_P]),
}


def _call(name: str, *arguments: Any) -> Any:
    function = getattr(relay.library(), name)
    function.restype, function.argtypes = _SIGNATURES[name]
    return function(*arguments)


def overhead() -> float:
    """Seconds that the emulator itself takes per direction, which count towards the latency that was asked for."""
    return ctypes.c_double.in_dll(relay.library(), "relay_overhead").value


def wire_bytes(nbytes: int) -> int:
    number: int = _call("relay_wire_bytes", nbytes)
    return number


def count(packet: bytes, header: int) -> int:
    number: int = _call("segments_count", packet, len(packet), header)
    return number


def cut(packet: bytes, header: int, first: int, last: int) -> bytes:
    out = ctypes.create_string_buffer(len(packet))
    size: int = _call("segments_cut", packet, len(packet), header, first, last, out)
    return out.raw[:size]


def _span(name: str, *arguments: Any) -> tuple[float, float] | None:
    out = (_D * 2)()
    return (out[0], out[1]) if _call(name, *arguments, out) else None


class Line:
    def __init__(self, bandwidth: float | None, limit: int, swing: tuple[float, float] = (0.0, 1.0)) -> None:
        self._line = _call("line_new", bandwidth or 0.0, limit, Swing(*swing))

    def __del__(self) -> None:
        _call("line_delete", self._line)

    def send(self, now: float, nbytes: int) -> tuple[float, float] | None:
        return _span("line_send", self._line, now, nbytes)


class Flows:
    def __init__(self, rates: Sequence[float], limit: int, delays: Sequence[float] = ()) -> None:
        of_rates, of_delays = ((_D * len(values))(*values) for values in (rates, delays))
        self._flows = _call("flows_new", of_rates, len(rates), of_delays, len(delays), limit)

    def __del__(self) -> None:
        _call("flows_delete", self._flows)

    def leave(self, now: float, flow: bytes, nbytes: int) -> float | None:
        out = _D()
        return out.value if _call("flows_leave", self._flows, now, flow, len(flow), nbytes, ctypes.byref(out)) else None


class Port:
    def __init__(self, link: Link, limit: int, seed: str) -> None:
        self._port = _call("port_new", ctypes.byref(relay.port(link, limit, seed)))

    def __del__(self) -> None:
        _call("port_delete", self._port)

    def leave(self, begin: float, nbytes: int, end: float = 0.0) -> tuple[float, float] | None:
        return _span("port_leave", self._port, begin, nbytes, end)

    def arrive(self, begin: float, end: float, nbytes: int) -> tuple[float, float] | None:
        return _span("port_arrive", self._port, begin, end, nbytes)

    def survivors(self, segments: int) -> list[tuple[int, int]]:
        out = (_I * (2 * segments + 2))()
        runs = _call("port_survivors", self._port, segments, out)
        return [(out[2 * k], out[2 * k + 1]) for k in range(runs)]

    @property
    def lost(self) -> int:
        number: int = _call("port_lost", self._port)
        return number
