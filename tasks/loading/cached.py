"""A dataset whose samples are computed once per server and then read from a cache."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tasks.loading.store import Store, StoreFailed, store_at

T = TypeVar("T")
_FORMAT = 1  # of an entry
_BUFFER, _BUFFER_BYTES = 20, 32 * 2**20  # values, and their bytes, that are written together


class CachedDataset(Dataset[T]):
    """The samples of a map-style dataset, computed when first asked for and read from a cache afterwards.

    Epochs, DataLoader workers and all ranks of a server share the cache, and so do later runs: the folder stays. What
    is random in a sample must come after the cache.

    place: a folder on a local disk, or redis://HOST:PORT/DB.
    depends: whatever values depend on besides the index: where the data comes from, parameters of the preprocessing.
    code: functions or modules whose source files values depend on. The dataset's class is always one of them.
    version: a function from an index to what changes with the sample, such as the file's time of change.
    limit: most bytes of a folder; None: as much as fits on the disk.

    Samples are tensors, numbers, texts, and tuples, lists and dicts of them. An entry that is damaged is computed anew.
    Where the store fails or is full, one warning says so (one per training process), and what is missing is computed in
    every epoch. ValueError, one line, for a place that cannot be used and for samples of other types.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        place: str | Path,
        depends: Mapping[str, Any],
        code: Sequence[Any] = (),
        version: Callable[[int], Any] | None = None,
        limit: int | None = None,
    ) -> None:
        self._dataset, self._version = dataset, version
        self._store = store_at(str(place), limit)
        self._prefix = _digest(depends, type(dataset), *code)
        self._failed = torch.zeros(2, dtype=torch.uint8).share_memory_()  # reading, writing: also by its workers
        self._pending = _Pending(self._store, self._failed, str(place))
        self._checked = False

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> T:
        key = self._key(index)
        found = self._pending.get(key)
        if found is not None:
            with suppress(_Unreadable):
                value: T = _decoded(found)
                return value
        value = self._dataset[index]
        self._pending.put(key, self._encoded(value))
        return value

    def flush(self) -> None:
        """Write what was computed and is still held back; this also happens when the process or the dataset ends."""
        self._pending.flush()

    def _key(self, index: int) -> bytes:
        version = None if self._version is None else self._version(index)
        return hashlib.sha256(self._prefix + repr((index, version)).encode()).digest()

    def _encoded(self, value: T) -> bytes:
        encoded = _encode(value)
        if not self._checked:
            try:
                _decoded(encoded)
            except _Unreadable as error:
                kind = type(value).__name__
                raise ValueError(f"a sample of type {kind} cannot be cached ({error}): make it tensors first") from None
            self._checked = True
        return encoded


class _Unreadable(Exception):
    """Bytes that torch makes no value of."""


class _Pending:
    """What is read from and written to the store, several values at a time; the first failure is a warning."""

    def __init__(self, store: Store, failed: Tensor, place: str) -> None:
        self._store, self._failed, self._place = store, failed, place
        self._begin()

    def get(self, key: bytes) -> bytes | None:
        if os.getpid() != self._pid:
            self._begin()
        if key in self._values:
            return self._values[key]
        if self._failed[0]:
            return None
        try:
            return self._store.get(key)
        except StoreFailed as error:
            self._fail(slice(0, 2), "cannot be read", error)
            return None

    def put(self, key: bytes, value: bytes) -> None:
        if self._failed[1]:
            return
        self._values[key] = value
        if len(self._values) >= _BUFFER or sum(map(len, self._values.values())) >= _BUFFER_BYTES:
            self.flush()

    def _begin(self) -> None:
        """Hold nothing back yet; in a process that was forked off, its parent writes what the parent holds back."""
        self._pid, self._values = os.getpid(), dict[bytes, bytes]()
        Finalize(self, _write_quietly, (self._store, self._values), exitpriority=1)

    def flush(self) -> None:
        try:
            _write(self._store, self._values)
        except StoreFailed as error:
            self._fail(slice(1, 2), "takes no more; is the disk full?", error)

    def _fail(self, which: slice, what: str, error: StoreFailed) -> None:
        first = not self._failed.any()
        self._failed[which] = 1
        if first:
            warnings.warn(f"cache={self._place}: {what} ({error}) Samples are computed instead.", stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": {}, "_pid": None}


def _write(store: Store, values: dict[bytes, bytes]) -> None:
    """Write the values and forget them, even if that fails with StoreFailed."""
    if values:
        taken = dict(values)
        values.clear()
        store.put(taken)


def _write_quietly(store: Store, values: dict[bytes, bytes]) -> None:
    with suppress(StoreFailed):
        _write(store, values)


def _digest(depends: Mapping[str, Any], *code: Any) -> bytes:
    try:
        given = json.dumps([_FORMAT, torch.__version__, dict(depends)], sort_keys=True)
    except TypeError as error:
        raise ValueError(f"depends: must be numbers, texts, lists and mappings of them: {error}") from None
    digest = hashlib.sha256(given.encode())
    for one in code:
        digest.update(f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', one.__name__)}".encode())
        with suppress(TypeError, OSError):  # it has no source file: a builtin, or typed at a prompt
            digest.update(Path(inspect.getfile(one)).read_bytes())
    return digest.digest()


def _encode(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(_compact(value), buffer)
    return buffer.getvalue()


def _compact(value: Any) -> Any:
    """The same without memory that belongs to other tensors, all of which torch would save."""
    if isinstance(value, Tensor):
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_compact(item) for item in value)
    return value


def _decoded(found: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(found), weights_only=True)
    except Exception as error:  # whatever torch raises for a type that it does not load
        raise _Unreadable(str(error).partition("\n")[0]) from None
