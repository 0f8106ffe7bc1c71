"""Cuts packets that stand for several TCP segments, as a network card does to which the kernel leaves that.

The kernel describes such a packet in the header of virtio in front of it (linux/virtio_net.h).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_VIRTIO = struct.Struct("=BB4H")  # flags, kind, bytes of headers and of a segment's payload, where the checksum is
_TCP4, _CONGESTION = 1, 0x80  # kinds: segments of TCP over IPv4; a flag beside it
_PROTOCOL = 6  # TCP's number
_FIN, _PSH, _CWR = 0x01, 0x08, 0x80


class _Layout(NamedTuple):
    """Where in a packet its IP header, its TCP header and its payload begin, and bytes of a segment's payload."""

    ip: int
    tcp: int
    payload: int
    segment: int


def count(packet: bytes, header: int) -> int:
    """How many segments a packet stands for that begins with virtio's header; its IPv4 header is at `header`."""
    layout = _layout(packet, header)
    return 1 if layout is None else -(-(len(packet) - layout.payload) // layout.segment)


def cut(packet: bytes, header: int, first: int, last: int) -> bytes:
    """The segments from `first` up to, without, `last` of a packet that stands for several, as a packet like it.

    Its TCP checksum is left to the receiver, as that of the packet was.
    """
    layout = _layout(packet, header)
    assert layout is not None
    payload = packet[layout.payload + first * layout.segment : layout.payload + last * layout.segment]
    before = bytearray(packet[: layout.payload])
    flags, kind, headers, segment, start, offset = _VIRTIO.unpack_from(before)
    if len(payload) <= segment:
        kind, segment = 0, 0
    _VIRTIO.pack_into(before, 0, flags, kind, headers, segment, start, offset)
    length = layout.payload - layout.tcp + len(payload)
    _write_ip(before, layout, length, first)
    _write_tcp(before, layout, length, first, layout.payload + last * layout.segment >= len(packet))
    return bytes(before) + payload


def _write_ip(before: bytearray, layout: _Layout, length: int, first: int) -> None:
    (number,) = struct.unpack_from("!H", before, layout.ip + 4)
    struct.pack_into("!HH", before, layout.ip + 2, layout.tcp - layout.ip + length, (number + first) % 2**16)
    struct.pack_into("!H", before, layout.ip + 10, 0)
    struct.pack_into("!H", before, layout.ip + 10, 0xFFFF ^ _sum(before[layout.ip : layout.tcp]))


def _write_tcp(before: bytearray, layout: _Layout, length: int, first: int, ends: bool) -> None:
    (number,) = struct.unpack_from("!I", before, layout.tcp + 4)
    struct.pack_into("!I", before, layout.tcp + 4, (number + first * layout.segment) % 2**32)
    if not ends:
        before[layout.tcp + 13] &= ~(_FIN | _PSH) & 0xFF
    if first:
        before[layout.tcp + 13] &= ~_CWR & 0xFF
    addresses = before[layout.ip + 12 : layout.ip + 20]
    struct.pack_into("!H", before, layout.tcp + 16, _sum(addresses + struct.pack("!HH", _PROTOCOL, length)))


def _layout(packet: bytes, header: int) -> _Layout | None:
    """None of a packet that is one segment."""
    _, kind, _, segment, _, _ = _VIRTIO.unpack_from(packet)
    if kind & ~_CONGESTION != _TCP4:
        return None
    tcp = header + 4 * (packet[header] & 0xF)
    return _Layout(header, tcp, tcp + 4 * (packet[tcp + 12] >> 4), segment)


def _sum(data: bytes | bytearray) -> int:
    """The sum of 16-bit words of the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
