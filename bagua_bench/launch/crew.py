"""The ranks of a job that exists: rank 0 composes cells, one after the other, and hands them to the others."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, NoReturn

from bagua_bench.configuration.cell import Cell
from bagua_bench.launch import joined
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch
from bagua_bench.results.result import Result

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_WAIT = timedelta(days=365)  # for the next cell; a rank 0 that ends ends the store, and with it the wait
_GOODBYE = 10.0  # seconds that rank 0 waits for the others to have read the end
_CAUSE = 5.0  # seconds that rank 0 waits for the others' reasons after it has failed, perhaps because of them
_NUMBERS = count()


def lead(cell: Cell, watch: Watch) -> Result:
    """Run a cell on all ranks, as rank 0; `watch` gets every progress event. RunFailed if it raises on some rank.

    The reason is the one of the rank that failed first, if that can be known.
    """
    from bagua_bench.worker.progress import Progress
    from bagua_bench.worker.rank import train

    store = _store()
    _refuse_unequal(store, cell.run.timeout)
    number = next(_NUMBERS)
    store.set(f"cell-{number}", json.dumps(cell.to_json()))
    try:
        result = train(cell, Progress(watch))
    except Exception as error:
        told = _cause(store, number) if isinstance(error, RuntimeError) else ""  # as CommError is; others are its own
        raise RunFailed(told or _reason(error)) from error
    assert result is not None, "rank 0 has the result"
    return result


def dismiss(code: int) -> None:
    """Let the other ranks end with an exit code, as rank 0, and wait until they know."""
    others = int(os.environ["WORLD_SIZE"]) - 1
    if not others:
        return
    store = _store()
    store.set(f"cell-{next(_NUMBERS)}", json.dumps({"exit": code}))
    deadline = time.monotonic() + _GOODBYE
    while store.add("gone", 0) < others and time.monotonic() < deadline:
        time.sleep(0.01)


def follow() -> int:
    """Run what rank 0 hands over, as any other rank; the exit code that rank 0 gives."""
    try:
        joined.enter()
    except ValueError as error:  # rank 0 says so, too, unless its own server is in order
        if os.environ.get("LOCAL_RANK") == "0":
            print(f"rank {os.environ['RANK']}: {error}", file=sys.stderr)
        return 2
    try:
        return _follow()
    except KeyboardInterrupt:
        return 130


def leave(code: int) -> NoReturn:
    """End at once: torch's threads may abort the process on its way out, and the job would count as failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _follow() -> int:
    from torch.distributed import DistNetworkError, DistStoreError

    try:
        store = _store()
        store.set(f"local-{os.environ['RANK']}", os.environ["LOCAL_WORLD_SIZE"])
        for number in _NUMBERS:
            store.wait([f"cell-{number}"], _WAIT)
            given = json.loads(store.get(f"cell-{number}"))
            if "exit" in given:
                store.add("gone", 1)
                return int(given["exit"])
            _take_part(Cell.from_json(given), store, number)
    except (DistNetworkError, DistStoreError):
        print(f"rank {os.environ['RANK']}: rank 0 has ended without a word", file=sys.stderr)
    return 1


def _refuse_unequal(store: Store, timeout: float) -> None:
    """RunFailed if some server has another number of ranks than rank 0's, or a rank has not come within `timeout` s."""
    from torch.distributed import DistStoreError

    own, others = os.environ["LOCAL_WORLD_SIZE"], range(1, int(os.environ["WORLD_SIZE"]))
    for rank in others:
        try:
            store.wait([f"local-{rank}"], timedelta(seconds=timeout))
        except DistStoreError:
            raise RunFailed(f"rank {rank} of the job has not come within {timeout:g} s") from None
        if (theirs := store.get(f"local-{rank}").decode()) != own:
            raise RunFailed(f"LOCAL_WORLD_SIZE={own} at rank 0, but {theirs} at rank {rank}: must be equal everywhere")


def _take_part(cell: Cell, store: Store, number: int) -> None:
    from bagua_bench.worker.progress import Progress
    from bagua_bench.worker.rank import train

    try:
        train(cell, Progress(None))
    except Exception as error:
        store.compare_set(f"failed-{number}", "", _reason(error))


def _cause(store: Store, number: int) -> str:
    """What the first other rank that failed says, if one does so soon."""
    deadline = time.monotonic() + _CAUSE
    with suppress(RuntimeError):
        while time.monotonic() < deadline:
            if store.check([f"failed-{number}"]):
                return str(store.get(f"failed-{number}").decode())
            time.sleep(0.05)
    return ""


def _reason(error: Exception) -> str:
    return f"rank {os.environ['RANK']}: {type(error).__name__}: {error}"


def _store() -> Store:
    from torch.distributed.distributed_c10d import PrefixStore

    from bagua_bench.worker.meeting import job_store

    return PrefixStore("crew", job_store()[0])
