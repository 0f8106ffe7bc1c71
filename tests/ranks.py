"""Runs one function on several ranks: threads of this process, or real processes that are forks of a warm one."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bagua_bench.transport  # noqa: F401  registers the backend
from bagua_bench.comm.threads import ThreadComm
from bagua_bench.comm.torch_groups import TorchComm
from tests.warm import client as warm

Body = Callable[..., Any]
_HANGS = 300.0  # seconds beyond its time-out after which a rank that has not ended never will


def run(kind: str, size: int, body: Body, *args: Any, per_server: int = 1, timeout: float = 100.0) -> list[Any]:
    """Run `body(comm, *args)` on all ranks at once; results in rank order. `kind`: threads, gloo or bagua_net.

    If a rank raises, its peers fail too, and the first exception that is not a consequence of another is raised.
    timeout: seconds for which a call waits for other ranks; whoever wants to see it pass gives a short one.
    """
    results = outcomes(kind, size, body, *args, per_server=per_server, timeout=timeout)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise next((error for error in errors if type(error).__name__ != "CommError"), errors[0])
    return results


def outcomes(kind: str, size: int, body: Body, *args: Any, per_server: int = 1, timeout: float = 100.0) -> list[Any]:
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
        thread.join(timeout + _HANGS)
        assert not thread.is_alive(), "a rank hangs"
    return results


def _processes(
    size: int, body: Body, args: tuple[Any, ...], per_server: int, timeout: float, backend: str = "gloo"
) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        pipes = [Pipe(duplex=False) for _ in range(size)]
        processes = []
        for rank, (_, send) in enumerate(pipes):
            given = pickle.dumps((rank, size, folder, body, args, per_server, timeout, backend))
            processes.append(warm.call(_process, given, [send.fileno()], [body.__module__]))
            send.close()
        results: list[Any] = []
        for rank, (receive, _) in enumerate(pipes):
            try:
                assert receive.poll(timeout + _HANGS), f"rank {rank} hangs"
                results.append(torch.load(io.BytesIO(receive.recv_bytes()), weights_only=False))
            except EOFError:
                results.append(RuntimeError(f"rank {rank} ended without a result"))
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        return results


def _process(descriptors: Sequence[int], given: bytes) -> None:
    send = Connection(descriptors[0], readable=False)
    rank, size, folder, body, args, per_server, limit, backend = pickle.loads(given)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["BAGUA_NET_INTERFACES"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        comm = TorchComm.create(backend, limit, per_server)
        dist.barrier(comm.group)  # a rank that ends at once would hang up on others that still connect to it
        result = body(comm, *args)
    except BaseException as error:
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        result = error
    with contextlib.suppress(BrokenPipeError):
        packed = io.BytesIO()
        torch.save(result, packed)
        send.send_bytes(packed.getvalue())
    send.close()  # and the process ends, without waiting for peers that may be gone
