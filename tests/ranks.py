"""Runs one function on several ranks: threads of this process, or real processes over gloo."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  registers the backend
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.comm.torch_groups import TorchComm

Body = Callable[..., Any]
_SLOW = (
    "sklearn.model_selection",
    "tests.contract.test_life",
    "tests.contract.test_precision",
    "tests.golden.test_curves",
)
"""What takes long to import, as data sets and tests that compose configurations do: once, for all ranks."""


def run(kind: str, size: int, body: Body, *args: Any, per_server: int = 1, timeout: float = 30.0) -> list[Any]:
    """`body(comm, *args)` on every rank, at once; the results in the order of ranks. `kind`: threads or gloo.

    If a rank raises, its peers fail too, and the first exception that is no consequence of another is raised.
    """
    results = outcomes(kind, size, body, *args, per_server=per_server, timeout=timeout)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise next((error for error in errors if type(error).__name__ != "CommError"), errors[0])
    return results


def outcomes(kind: str, size: int, body: Body, *args: Any, per_server: int = 1, timeout: float = 30.0) -> list[Any]:
    """Like `run`, but an exception is returned in its rank's place."""
    start = {"threads": _threads, "gloo": _processes, "bagua_net": partial(_processes, backend="bagua_net")}[kind]
    return start(size, body, args, per_server, timeout)


def _threads(size: int, body: Body, args: tuple[Any, ...], per_server: int, timeout: float) -> list[Any]:
    comms = ThreadComm.world(size, per_server, timeout)
    results: list[Any] = [None] * size

    def work(comm: ThreadComm) -> None:
        try:
            results[comm.rank] = body(comm, *args)
        except BaseException as error:
            results[comm.rank] = error
            comm.fail()

    threads = [threading.Thread(target=work, args=(comm,), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 30)
        assert not thread.is_alive(), "a rank hangs"
    return results


def _processes(
    size: int, body: Body, args: tuple[Any, ...], per_server: int, timeout: float, backend: str = "gloo"
) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_SLOW))
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        processes = [
            context.Process(
                target=_process, args=(rank, size, folder, send, body, args, per_server, timeout, backend), daemon=True
            )
            for rank, (_, send) in enumerate(pipes)
        ]
        for process, (_, send) in zip(processes, pipes, strict=True):
            process.start()
            send.close()
        results: list[Any] = []
        for rank, (receive, _) in enumerate(pipes):
            try:
                assert receive.poll(timeout + 30), f"rank {rank} hangs"
                results.append(torch.load(io.BytesIO(receive.recv_bytes()), weights_only=False))
            except EOFError:
                results.append(RuntimeError(f"rank {rank} ended without a result"))
        for process in processes:
            process.join(5)
            process.kill()
        return results


def _process(
    rank: int, size: int, folder: str, send: Any, body: Body, args: Any, per_server: int, limit: float, backend: str
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["BAGUA_NET_INTERFACES"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        result = body(TorchComm.create(backend, limit, per_server), *args)
    except BaseException as error:
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        result = error
    with contextlib.suppress(BrokenPipeError):
        packed = io.BytesIO()
        torch.save(result, packed)
        send.send_bytes(packed.getvalue())
    send.close()
    os._exit(0)  # do not wait for peers that may be gone
