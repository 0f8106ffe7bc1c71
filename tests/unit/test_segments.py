"""Packets that stand for several TCP segments, cut where some of them are lost."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.emulator import count, cut

MSS = 1448
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def packet(payload: bytes, ethernet: bytes = b"", sequence: int = 7, number: int = 9, flags: int = ACK) -> bytes:
    """As the kernel hands it over: virtio's header, perhaps Ethernet's, IPv4, TCP with 12 bytes of options."""
    several = len(payload) > MSS
    start = len(ethernet) + 20
    virtio = struct.pack("=BBHHHH", 1, several, start + 32, MSS if several else 0, start, 16)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 52 + len(payload), number, 0x4000, 64, 6, 0, b"\xc6\x12\0\1", b"\xc6\x12\0\2"
    )
    tcp = struct.pack("!HHIIBBHHH", 5000, 80, sequence, 1, 8 << 4, flags, 500, 0, 0) + b"\1\1\x08\x0a" + bytes(8)
    return virtio + ethernet + ip + tcp + payload


def folded(data: bytes) -> int:
    """The sum of 16-bit words modulo 2^16 - 1: that of a header with its checksum is 0."""
    return int.from_bytes(data, "big") % 0xFFFF


def test_what_is_one_segment_counts_as_one() -> None:
    for nbytes, number in ((0, 1), (MSS, 1), (MSS + 1, 2), (40 * MSS, 40), (40 * MSS + 1, 41)):
        assert count(packet(bytes(nbytes)), 10) == number
        assert count(packet(bytes(nbytes), bytes(14)), 24) == number


@given(
    st.integers(MSS + 1, 64_000), st.data(), st.sampled_from([b"", bytes(range(14))]), st.sampled_from([7, 2**32 - 9])
)
def test_a_run_of_segments_is_a_packet_like_the_whole(
    nbytes: int, data: st.DataObject, ethernet: bytes, sequence: int
) -> None:
    payload = bytes(k * 7 % 251 for k in range(nbytes))
    whole = packet(payload, ethernet, sequence, 2**16 - 3, ACK | PSH | FIN | CWR)
    header = 10 + len(ethernet)
    segments = count(whole, header)
    first = data.draw(st.integers(0, segments - 1))
    last = data.draw(st.integers(first + 1, segments))
    piece = cut(whole, header, first, last)
    kept = payload[first * MSS : last * MSS]
    flags = ACK | (CWR if first == 0 else 0) | (PSH | FIN if last == segments else 0)
    expected = packet(kept, ethernet, (sequence + first * MSS) % 2**32, (2**16 - 3 + first) % 2**16, flags)
    ip, tcp = header, header + 20
    assert piece[:10] == expected[:10]
    assert piece[10 : ip + 10] == expected[10 : ip + 10]
    assert folded(piece[ip:tcp]) == 0, "the checksum of the IP header holds"
    assert piece[ip + 12 : tcp + 16] == expected[ip + 12 : tcp + 16]
    left = struct.unpack_from("!H", piece, tcp + 16)[0]
    pseudo = piece[ip + 12 : tcp] + struct.pack("!HH", 6, len(piece) - tcp)
    assert left % 0xFFFF == folded(pseudo), "who completes the checksum finds that of the pseudo header"
    assert piece[tcp + 18 :] == expected[tcp + 18 :]
