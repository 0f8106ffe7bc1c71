"""`python -m tests.warm.server SOCKET PARENT ...`: forks on request, until the process PARENT ends.

A request is a pickled `Command` or `Call` of `tests.warm.fork` with file descriptors; the answers are the id of the new
process, and how it ended. If a client hangs up before that, its process is killed. The dots make room for the command
lines of the forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from importlib import import_module
from typing import Any

from bagua_bench.processes.lifetime import die_with_parent
from tests.warm import fork

PRELOADED = (
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch._dynamo",  # the first optimizer would import it
    "torch.optim",
    "tasks.bert_large",
    "tasks.quadratic",
    "tasks.resnet50",
    "tasks.transformer",
    "tasks.vgg16",
    "sklearn.datasets",
    "sklearn.model_selection",
    "pandas",
    "matplotlib.pyplot",
    "rich.console",
    "hydra",
    "hydra.main",
    "hydra._internal.utils",
    "hydra.core.hydra_config",
    "bagua_bench.advise.ranking",
    "bagua_bench.advise.words",
    "bagua_bench.configuration.explain",
    "bagua_bench.report.page",
    "bagua_bench.campaign.session",
    "bagua_bench.simulate.run",
    "bagua_bench.figures.style",
    "bagua_bench.launch.agent",
    "bagua_bench.worker.rank",
    "bagua_bench.transport",
)


class Server:
    """Accepts requests and reports how their processes end."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, (self._accept, ()))

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                handle, arguments = key.data
                handle(*arguments)

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        self.selector.register(client, selectors.EVENT_READ, (self._start, (client,)))

    def _start(self, client: socket.socket) -> None:
        self.selector.unregister(client)
        try:
            start, descriptors = _receive(client)
            start.prepare()
        except EOFError:
            client.close()
            return
        pid = os.fork()
        if not pid:
            start.become(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _tell(client, pid)
        ended = os.pidfd_open(pid)
        self.selector.register(ended, selectors.EVENT_READ, (self._ended, (client, ended, pid)))
        self.selector.register(client, selectors.EVENT_READ, (self._hung_up, (client, ended)))

    def _hung_up(self, client: socket.socket, ended: int) -> None:
        if client.fileno() < 0:  # its process has ended at the same moment, and that was seen first
            return
        self.selector.unregister(client)
        signal.pidfd_send_signal(ended, signal.SIGKILL)

    def _ended(self, client: socket.socket, ended: int, pid: int) -> None:
        self.selector.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if client in self.selector.get_map():
            self.selector.unregister(client)
            _tell(client, code)
        client.close()


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it hung up a moment ago, and need not know
        client.sendall(struct.pack("<q", number))


def _receive(client: socket.socket) -> tuple[Any, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(client, 8, 16)
    if not head:
        raise EOFError
    with client.makefile("rb") as stream:
        (size,) = struct.unpack("<q", head + stream.read(8 - len(head)))
        return pickle.loads(stream.read(size)), descriptors


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen(1000)  # requests wait until everything is imported
    for name in PRELOADED:
        import_module(name)
    fork.prepare()
    gc.collect()
    gc.freeze()  # pages that the collector leaves alone stay shared with the forks
    Server(listener).serve()


if __name__ == "__main__":
    main()
