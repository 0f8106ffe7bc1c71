"""One process of the harness: JSON commands on stdin, JSON answers on stdout.

It is started without installed packages and imports next to nothing, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.transport import own_state
from tools.transport.structures import Facts, Outcome, StreamReport, plan_of, values

_P = ctypes.c_void_p
_MOST_STREAMS = 512  # cpp/core/wire.h


class Worker:
    """The commands; comms, listeners and plain sockets are kept by a name that the parent chooses."""

    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        for name in ("open", "adopt", "open_group", "join"):
            getattr(self.lib, f"harness_{name}").restype = _P
        self.net: int | None = None
        self.path = ""
        self.peer: int | None = None  # the other rank of a group
        self.held: dict[str, Any] = {}

    def open(self, path: str, symbol: str, verbose: bool = False) -> dict[str, Any]:
        """Load a plugin; `opened` is False if it cannot be used."""
        self.path = path
        version = int(symbol.rpartition("_v")[2])
        self.net = self.lib.harness_open(path.encode(), symbol.encode(), version, int(verbose))
        return {"opened": self.net is not None}

    def open_by_nccl(
        self, nccl: str, places: dict[str, int], newest: int, path: str, symbol: str, verbose: bool = False
    ) -> dict[str, Any]:
        """Load a plugin as NCCL does, or take NCCL's own sockets, see tools/transport/nccl.py.

        `opened` is False if it cannot be used.
        """
        self.path = path
        library = ctypes.CDLL(nccl)
        base = (ctypes.cast(library.ncclGetVersion, _P).value or 0) - places["ncclGetVersion"]
        place = base + places[symbol]
        table: int | None = place
        if symbol == "ncclNetSocket":
            _answer_zero(base + places["cudaGetDevice"])
        else:
            load = ctypes.CFUNCTYPE(_P, ctypes.c_char_p)(base + places["load"])
            look_up = ctypes.CFUNCTYPE(_P, _P)(place)
            handle = load(path.encode())
            table = look_up(handle) if handle else None
        self.net = self.lib.harness_adopt(_P(table), newest, int(verbose)) if table else None
        return {"opened": self.net is not None}

    def open_group(self, path: str, rank: int) -> dict[str, Any]:
        """Be one of two ranks of the torch backend's group; `opened` is the handle in hex, or None."""
        handle = ctypes.create_string_buffer(128)
        self.path, self.peer = path, 1 - rank
        self.net = self.lib.harness_open_group(path.encode(), rank, handle)
        return {"opened": handle.raw.hex() if self.net else None}

    def join(self, handles: list[str], names: list[str]) -> dict[str, Any]:
        """Connect to the other rank; one comm for all names."""
        comm = self.lib.harness_join(_P(self.net), bytes.fromhex("".join(handles)))
        self.held |= dict.fromkeys(names, comm)
        return {"result": 0 if comm else -1}

    def close(self) -> dict[str, Any]:
        """Finish and unload the plugin."""
        result = self.lib.harness_close(_P(self.net))
        self.net = None
        return {"result": result}

    def facts(self) -> dict[str, Any]:
        """Properties of device 0."""
        facts = Facts()
        return {"result": self.lib.harness_facts(_P(self.net), ctypes.byref(facts)), **values(facts)}

    def listen(self, name: str) -> dict[str, Any]:
        """Listen; the handle comes back in hex."""
        handle, comm = ctypes.create_string_buffer(128), _P()
        result = self.lib.harness_listen(_P(self.net), handle, ctypes.byref(comm))
        self.held[name] = comm.value
        return {"result": result, "handle": handle.raw.hex()}

    def link(
        self, connect: dict[str, str], accept: dict[str, str], seconds: float = 20, poll: float = 2e-4
    ) -> dict[str, Any]:
        """Connect (name -> handle) and accept (name -> listener) in turn until all are there."""
        handles = {name: ctypes.create_string_buffer(bytes.fromhex(handle), 128) for name, handle in connect.items()}
        waiting, end = [*connect, *accept], time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            for name in list(waiting):
                comm = _P()
                if name in connect:
                    result = self.lib.harness_connect(_P(self.net), handles[name], ctypes.byref(comm))
                else:
                    result = self.lib.harness_accept(_P(self.net), _P(self.held[accept[name]]), ctypes.byref(comm))
                if result:
                    return {"result": result, "waiting": waiting}
                if comm.value:
                    self.held[name] = comm.value
                    waiting.remove(name)
            time.sleep(poll)
        return {"result": 0 if not waiting else -1, "waiting": waiting}

    def stream(self, name: str, sending: bool, **plan: Any) -> dict[str, Any]:
        """Move messages one way."""
        out = Outcome()
        self.lib.harness_stream(
            _P(self.net), _P(self.held[name]), int(sending), ctypes.byref(plan_of(plan)), ctypes.byref(out)
        )
        return values(out)

    def pingpong(self, send: str, receive: str, first: bool, **plan: Any) -> dict[str, Any]:
        """Half round trips."""
        out, comms = Outcome(), (_P(self.held[send]), _P(self.held[receive]))
        self.lib.harness_pingpong(_P(self.net), *comms, int(first), ctypes.byref(plan_of(plan)), ctypes.byref(out))
        return values(out)

    def cycle(self, count: int) -> dict[str, Any]:
        """So many times: connect to this process itself, move a message, close."""
        for _ in range(count):
            handle = self.listen("c.l")["handle"]
            linked = self.link({"c.s": handle}, {"c.r": "c.l"}, poll=0)
            if linked["result"]:
                return linked
            for name, kind in (("c.s", "send"), ("c.r", "receive"), ("c.l", "listener")):
                self.drop(name, kind)
        return {"result": 0}

    def drop(self, name: str, kind: str) -> dict[str, Any]:
        """Close a send, receive or listener comm."""
        return {"result": getattr(self.lib, f"harness_close_{kind}")(_P(self.net), _P(self.held.pop(name)))}

    def plain_listen(self, name: str, host: str) -> dict[str, Any]:
        """Listen for the baseline's connection."""
        self.held[name] = socket.create_server((host, 0))
        return {"port": self.held[name].getsockname()[1]}

    def plain_accept(self, name: str, listener: str) -> dict[str, Any]:
        """Accept the baseline's connection."""
        return self._plain(name, self.held[listener].accept()[0])

    def plain_connect(self, name: str, host: str, port: int) -> dict[str, Any]:
        """Make the baseline's connection."""
        return self._plain(name, socket.create_connection((host, port)))

    def _plain(self, name: str, connection: socket.socket) -> dict[str, Any]:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if congestion := os.environ.get("BAGUA_NET_CONGESTION"):  # as the transport's
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        self.held[name] = connection
        return {"port": connection.getsockname()[1]}

    def plain_stream(self, name: str, sending: bool, **plan: Any) -> dict[str, Any]:
        """Move messages one way over the baseline's connection."""
        out = Outcome()
        self.lib.plain_stream(self.held[name].fileno(), int(sending), ctypes.byref(plan_of(plan)), ctypes.byref(out))
        return values(out)

    def plain_pingpong(self, send: str, receive: str, first: bool, **plan: Any) -> dict[str, Any]:
        """Half round trips over the baseline's connection, or over one for each direction."""
        out, given = Outcome(), plan_of(plan)
        sockets = (self.held[name].fileno() for name in (send, receive))
        self.lib.plain_pingpong(*sockets, int(first), ctypes.byref(given), ctypes.byref(out))
        return values(out)

    def state(self) -> dict[str, Any]:
        """Descriptors, threads, and the local ports of connected sockets in order of descriptor."""
        return {
            "fds": len(list(Path("/proc/self/fd").iterdir())),
            "threads": own_state.threads(),
            "ports": [own_state.port(fd) for fd in own_state.connected()],
        }

    def report(self, name: str) -> dict[str, Any]:
        """Counters of bagua_net's streams of a comm; of a group that of messages between two ranks."""
        out, library, comm = (StreamReport * _MOST_STREAMS)(), ctypes.CDLL(self.path), _P(self.held[name])
        if self.peer is None:
            count = library.bagua_net_comm_report(comm, out, len(out))
        else:
            count = library.bagua_net_report(comm, self.peer, 1, out, len(out))
        return {"streams": [values(out[k]) for k in range(count)]}

    def report_all(self) -> dict[str, Any]:
        """Counters of the streams of every open comm of bagua_net."""
        call = ctypes.CDLL(self.path).bagua_net_open_comm_report
        comms: list[list[dict[str, Any]]] = []
        out, peer = (StreamReport * _MOST_STREAMS)(), ctypes.create_string_buffer(100)
        while (count := call(len(comms), out, len(out), peer, len(peer))) >= 0:
            comms.append([values(out[k]) for k in range(count)])
        return {"comms": comms}

    def use_all_files(self) -> dict[str, Any]:
        """Allow no more descriptors than there are now."""
        highest = max(int(p.name) for p in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
        return {"result": 0}

    def rest(self, seconds: float) -> dict[str, Any]:
        """Do nothing."""
        time.sleep(seconds)
        return {"result": 0}

    def cut_later(self, seconds: float, index: int) -> dict[str, Any]:
        """After that time, reset one of the connections, as a broken middle box would."""

        def cut() -> None:
            for number, fd in enumerate(own_state.connected()):
                if number == index:
                    ctypes.CDLL(None).connect(fd, ctypes.create_string_buffer(16), 16)  # AF_UNSPEC resets: tcp(7)

        threading.Timer(seconds, cut).start()
        return {"result": 0}


def _answer_zero(place: int) -> None:
    """Have NCCL's copy of cudaGetDevice say that the device is 0. Its sockets ask, and there may be no driver."""
    code = bytes.fromhex("c707 00000000 31c0 c3")  # mov dword [rdi], 0; xor eax, eax; ret
    page = place & -resource.getpagesize()
    size = place + len(code) - page
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    if protect(_P(page), ctypes.c_size_t(size), 7):  # to read, to write, to execute
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memmove(place, code, len(code))
    protect(_P(page), ctypes.c_size_t(size), 5)


def main() -> None:
    """Serve until stdin ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in programs that are not Python: it kills them
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        method: Callable[..., dict[str, Any]] = getattr(worker, command.pop("do"))
        print(json.dumps(method(**command)), flush=True)


if __name__ == "__main__":
    main()
