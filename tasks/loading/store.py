"""Where a cached dataset keeps its values: an LMDB folder of this server, or a Redis server.

LMDB is chosen over diskcache: it is maintained and licensed permissively, readers never wait, writers of several
processes take turns, and a process that dies in a write leaves the last state whole. It needs a local file system.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import lmdb

_MOST = 2**40
"""Bytes of address space for an LMDB folder without a limit; the file grows only as it is filled."""
_READERS = 1024  # processes and threads that may read at the same time
_SEAL = struct.Struct(">QI")  # length and checksum of a value
_REDIS = ("redis://", "rediss://", "unix://")


class StoreFailed(Exception):
    """A store could not be read or written; the message is one line."""


class Store(Protocol):
    """Keeps bytes by key, for several processes at once. All methods raise StoreFailed."""

    def get(self, key: bytes) -> bytes | None:
        """The value; None if there is none, or if it is damaged."""

    def put(self, values: Mapping[bytes, bytes]) -> None:
        """Keep values; all of them, or none if it fails."""


def store_at(place: str, limit: int | None = None) -> Store:
    """The store at a folder, of at most `limit` bytes, or at the URL of a Redis server, which has its own limit.

    ValueError, one line, if it cannot be there; ModuleNotFoundError with the command that installs what it needs.
    """
    return _Redis(place) if place.startswith(_REDIS) else _Lmdb(place, limit)


def _sealed(value: bytes) -> bytes:
    """With its length and checksum in front."""
    return _SEAL.pack(len(value), zlib.crc32(value)) + value


def _opened_seal(found: bytes | memoryview | None) -> bytes | None:
    """The value that was sealed, None if it is damaged.

    The length comes first: a map of a file must not be read to where a damaged entry says that it ends.
    """
    if found is None or len(found) < _SEAL.size:
        return None
    length, checksum = _SEAL.unpack(found[: _SEAL.size])
    if length != len(found) - _SEAL.size:
        return None
    value = bytes(found[_SEAL.size :])
    return value if zlib.crc32(value) == checksum else None


class _Lmdb:
    def __init__(self, place: str, limit: int | None) -> None:
        try:
            import lmdb
        except ModuleNotFoundError:
            raise ModuleNotFoundError("a cache needs LMDB: pip install 'bagua-bench[cache]'") from None
        self._error, self._limit = lmdb.Error, limit or _MOST
        try:
            Path(place).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder = Path(place).resolve(strict=True)
            self._open()
        except OSError as error:
            raise ValueError(f"cache={place}: {error.strerror}; must be a folder that can be written to") from None
        except StoreFailed as error:
            raise ValueError(f"cache={place}: {error}; remove the folder, or name another one") from None

    def get(self, key: bytes) -> bytes | None:
        try:
            with self._open().begin(buffers=True) as transaction:
                return _opened_seal(transaction.get(key))
        except self._error as error:
            raise StoreFailed(str(error)) from None

    def put(self, values: Mapping[bytes, bytes]) -> None:
        try:
            with self._open().begin(write=True) as transaction:
                for key, value in values.items():
                    transaction.put(key, _sealed(value))
        except self._error as error:
            raise StoreFailed(str(error)) from None

    def _open(self) -> lmdb.Environment:
        """The folder's environment: one per process, as LMDB's locks demand, and not the one of a parent process."""
        pid, known = os.getpid(), _OPEN.get(self._folder)
        if known is not None and known[0] == pid:
            return known[1]
        if known is not None:
            known[1].close()
        _OPEN[self._folder] = pid, _opened(self._folder, self._limit)
        return _OPEN[self._folder][1]


_OPEN: dict[Path, tuple[int, lmdb.Environment]] = {}


def _opened(folder: Path, limit: int) -> lmdb.Environment:
    """StoreFailed if it is damaged."""
    import lmdb

    try:
        opened = lmdb.open(str(folder), map_size=limit, metasync=False, max_readers=_READERS, mode=0o600)
        reason = _damage(opened, folder)
    except lmdb.Error as error:
        raise StoreFailed(str(error)) from None
    if reason:
        opened.close()
        raise StoreFailed(reason)
    return opened


def _damage(opened: lmdb.Environment, folder: Path) -> str:
    """What LMDB itself would not survive: a file that ends too soon, or says that its keys have several values."""
    used = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    if opened.stat()["entries"] and (folder / "data.mdb").stat().st_size < used:
        return "data.mdb was cut off"
    with opened.begin() as transaction:
        flags = opened.open_db(txn=transaction).flags()
    return "data.mdb is damaged" if any(flags.values()) else ""


class _Redis:
    def __init__(self, place: str) -> None:
        try:
            import redis
        except ModuleNotFoundError:
            raise ModuleNotFoundError("a cache in Redis needs its client: pip install 'bagua-bench[redis]'") from None
        self._error, self._place = redis.RedisError, place
        try:
            self._client: Any = redis.Redis.from_url(place)
            self._client.ping()
        except (ValueError, redis.RedisError) as error:
            raise ValueError(f"cache={place}: {error}") from None

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._place,)

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._client.get(key)
        except self._error as error:
            raise StoreFailed(str(error)) from None
        return _opened_seal(found)

    def put(self, values: Mapping[bytes, bytes]) -> None:
        try:
            self._client.mset({key: _sealed(value) for key, value in values.items()})
        except self._error as error:
            raise StoreFailed(str(error)) from None
