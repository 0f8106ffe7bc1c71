"""Hostile connections: a seeded generator over the handshake and the chunk header.

The handshake is written a second time here, with Python's own hmac, so that it also checks the one in C++.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import random
import socket
import struct
from dataclasses import dataclass

MAGIC = 0x316E2D6175676162
VERSION = 8
OTHERS = 2
"""Sockets of a connection behind its streams: receipts and pulse."""
_HELLO = struct.Struct("<QHHHHQ8s32s")
_CHUNK = struct.Struct("<8I32x")
_PATIENCE = 5.0  # seconds for an answer


@dataclass
class Target:
    """The address and the token in a listener's handle."""

    host: str
    port: int
    token: bytes

    @classmethod
    def of(cls, handle: str) -> Target:
        """From the 128 bytes in hex (IPv4)."""
        raw = bytes.fromhex(handle)
        family, port = struct.unpack_from("<HH", raw, 40)
        assert family == 4
        return cls(socket.inet_ntoa(raw[48:52]), port, raw[8:40])

    def connect(self) -> socket.socket:
        """A plain TCP connection to it."""
        return socket.create_connection((self.host, self.port), timeout=_PATIENCE)


def hello(
    index: int, streams: int, identity: bytes, magic: int = MAGIC, version: int = VERSION, flags: int = 0
) -> bytes:
    """The first message of the handshake."""
    return _HELLO.pack(magic, version, flags, streams, index, 0, identity, os.urandom(32))


def proof(token: bytes, role: bytes, first: bytes, nonce: bytes, secret: bytes = b"") -> bytes:
    """The bytes by which a side shows that it knows the key."""
    key = hmac.digest(secret, token, hashlib.sha256)
    return hmac.digest(key, role.ljust(8, b"\0") + first + nonce, hashlib.sha256)


def receive(s: socket.socket, size: int) -> bytes:
    """Exactly so many bytes; ConnectionError if the peer closes."""
    data = b""
    while len(data) < size:
        part = s.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def join(target: Target, index: int, streams: int, identity: bytes) -> socket.socket:
    """The whole handshake for one stream, up to the answer; the welcome is still to be read."""
    s = target.connect()
    first = hello(index, streams, identity)
    s.sendall(first)
    challenge = receive(s, 64)
    assert hmac.compare_digest(challenge[32:], proof(target.token, b"listen", first, challenge[:32]))
    s.sendall(proof(target.token, b"connect", first, challenge[:32]))
    return s


def chunk(
    sequence: int, offset: int, length: int, total: int, tag: int = 0, receipt: int = 0, nothing: int = 0
) -> bytes:
    """A chunk header."""
    return _CHUNK.pack(sequence, offset, length, total, tag, 0, receipt, nothing)


class Fuzzer:
    """Strangers of all kinds; `held` are those that stay silent."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: list[socket.socket] = []
        self.kinds = (
            self._silent,
            self._closing,
            self._http,
            self._noise,
            self._half_hello,
            self._bad_hello,
            self._wrong_answer,
            self._replayed,
            self._mutated,
        )
        self.recorded: bytes | None = None

    def record(self, target: Target) -> None:
        """Keep the bytes of an honest handshake, for the replay."""
        first = hello(0, 4, self.random.randbytes(8))
        with target.connect() as s:
            s.sendall(first)
            challenge = receive(s, 64)
        self.recorded = first + proof(target.token, b"connect", first, challenge[:32])

    def attack(self, target: Target) -> None:
        """One hostile connection; the listener's answer does not matter."""
        with contextlib.suppress(OSError):
            s = target.connect()
            keep = self.random.choice(self.kinds)(s)
            self.held = [*self.held[-200:], s] if keep else self.held
            if not keep:
                if self.random.random() < 0.3:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
                s.close()

    def _silent(self, s: socket.socket) -> bool:
        return True

    def _closing(self, s: socket.socket) -> bool:
        return False

    def _http(self, s: socket.socket) -> bool:
        s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\nAccept: */*\r\n\r\n")
        return self.random.random() < 0.5

    def _noise(self, s: socket.socket) -> bool:
        s.sendall(self.random.randbytes(self.random.choice((1, 63, 64, 65, 96, 97, 4096))))
        return self.random.random() < 0.5

    def _half_hello(self, s: socket.socket) -> bool:
        s.sendall(hello(0, 4, bytes(8))[: self.random.randrange(1, 64)])
        return self.random.random() < 0.5

    def _bad_hello(self, s: socket.socket) -> bool:
        bad = self.random.choice(
            (
                {"magic": 0},
                {"version": VERSION - 1},
                {"version": VERSION + 1},
                {"flags": 4},
                {"streams": 0},
                {"streams": 65535},
                {"index": 4 + OTHERS},
                {"index": 65535},
            )
        )
        values = {"index": 0, "streams": 4, **bad}
        s.sendall(hello(identity=self.random.randbytes(8), **values))
        return False

    def _wrong_answer(self, s: socket.socket) -> bool:
        s.sendall(hello(self.random.randrange(4 + OTHERS), 4, self.random.randbytes(8)) + self.random.randbytes(32))
        return self.random.random() < 0.5

    def _replayed(self, s: socket.socket) -> bool:
        s.sendall(self.recorded or b"")
        return self.random.random() < 0.5

    def _mutated(self, s: socket.socket) -> bool:
        data = bytearray(hello(0, 4, bytes(8)) + bytes(32))
        for _ in range(self.random.randrange(1, 8)):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        s.sendall(data)
        return False

    def bad_chunk(self, posted: int, sequence: int) -> bytes:
        """A header (and payload) that no honest peer sends while one buffer of `posted` bytes is open."""
        r = self.random
        big = r.choice((posted + 1, 2**31, 2**32 - 1))
        headers = (
            chunk(sequence, 0, 0, posted),  # empty part of a message that is not
            chunk(sequence, 0, posted, posted - 1),
            chunk(sequence, big - posted, posted, posted),
            chunk(sequence, 0, big, big),
            chunk(sequence, 2**32 - 1, 1, posted),
            chunk(sequence, posted, 1, posted),
            chunk(sequence, 0, 1, posted, tag=7),
            chunk(sequence, 0, 1, posted, receipt=2),
            chunk(sequence, 0, 1, posted, nothing=1),
            chunk(sequence, 0, 0, 0, nothing=2),
            chunk(sequence, 0, 1, posted) + b"x" + chunk(sequence, 1, 1, posted, receipt=1),
            chunk((sequence - 1) % 2**32, 0, 1, 1),  # long finished
            chunk((sequence - 64) % 2**32, 0, 1, 1),
            chunk(sequence, 0, 1, posted) + b"x" + chunk(sequence, 0, 1, posted - 1),  # totals disagree
            chunk(sequence, 0, posted, posted) + bytes(posted) + chunk(sequence, 0, 1, posted),  # once more
        )
        return r.choice(headers) + r.randbytes(r.choice((0, 1, 100, 5000)))

    def bad_receipts(self) -> bytes:
        """For messages that nobody sent."""
        r = self.random
        several = range(r.choice((1, 2, 50)))
        return b"".join(struct.pack("<2I", 1 + r.randrange(2**32 - 1), r.choice((0, 0, 1, 2))) for _ in several)
