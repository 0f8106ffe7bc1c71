"""Two harness processes, and the comms between them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tools.transport.nccl import Nccl

GROUP = "bagua_net"
_HOME = str(Path(__file__).resolve().parents[2])


class HarnessError(RuntimeError):
    """A worker ended, or its answer was not success."""


class Process:
    """One worker; `ask` and `tell`/`hear` for two at once."""

    def __init__(self, library: Path, environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self.child = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-m", "tools.transport.worker", str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": _HOME},
        )

    def tell(self, do: str, **arguments: Any) -> None:
        """Give a command."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise HarnessError(f"{do}: the worker is gone") from None

    def hear(self) -> dict[str, Any]:
        """Wait for the answer."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise HarnessError(f"the worker ended with code {self.child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def has_answered(self) -> bool:
        """Whether an answer can be heard at once, or the worker has ended."""
        assert self.child.stdout is not None
        return bool(select.select([self.child.stdout], [], [], 0)[0])

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give a command and wait for the answer."""
        self.tell(do, **arguments)
        return self.hear()

    def end(self) -> None:
        """Kill it."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()


class Pair:
    """Two workers `a` and `b` with one plugin loaded in both, by themselves or by NCCL's loader; or, with GROUP for its
    symbol, with the torch backend's group of ranks, connected."""

    def __init__(
        self,
        library: Path,
        plugin: Path,
        symbol: str,
        environment: Mapping[str, str] | None = None,
        prefixes: tuple[Sequence[str], Sequence[str]] = ((), ()),
        verbose: bool = False,
        nccl: Nccl | None = None,
    ) -> None:
        variables = {"NCCL_SOCKET_IFNAME": "lo", **(environment or {})}
        self.a, self.b = (Process(library, variables, prefix) for prefix in prefixes)
        self.handles: list[str] = []  # of a group's ranks
        try:
            self._open(plugin, symbol, verbose, nccl)
        except BaseException:
            self.end()
            raise

    def _open(self, plugin: Path, symbol: str, verbose: bool, nccl: Nccl | None) -> None:
        for rank, process in enumerate((self.a, self.b)):
            if symbol == GROUP:
                process.tell("open_group", path=str(plugin), rank=rank)
            elif nccl is not None:
                process.tell("open_by_nccl", **nccl.told(), path=str(plugin), symbol=symbol, verbose=verbose)
            else:
                process.tell("open", path=str(plugin), symbol=symbol, verbose=verbose)
        opened = [process.hear()["opened"] for process in (self.a, self.b)]
        if symbol == GROUP:
            self.handles = opened
        if not all(opened):
            raise HarnessError(f"{plugin} cannot be used through {symbol}")

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kill both."""
        self.a.end()
        self.b.end()

    def link(self, name: str = "x") -> None:
        """A comm from a (`NAME.s`) to b (`NAME.r`); a group connects both ways."""
        if self.handles:
            self._join()
        else:
            self.connect(self.a, self.b, name)

    def link_back(self) -> None:
        """A comm from b to a for `pingpong`."""
        if not self.handles:
            self.connect(self.b, self.a, "y")

    def _join(self) -> None:
        for process in (self.a, self.b):
            process.tell("join", handles=self.handles, names=["x.s", "x.r", "y.s", "y.r"])
        for process in (self.a, self.b):
            _check("join", process.hear())

    def connect(self, sender: Process, receiver: Process, name: str) -> None:
        """A comm from one process (`NAME.s`) to another (`NAME.r`)."""
        handle = receiver.ask("listen", name=f"{name}.l")
        _check("listen", handle)
        sender.tell("link", connect={f"{name}.s": handle["handle"]}, accept={})
        receiver.tell("link", connect={}, accept={f"{name}.r": f"{name}.l"})
        for answer in (sender.hear(), receiver.hear()):
            _check("connect", answer)

    def stream(self, name: str = "x", strict: bool = True, **plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Messages from a to b; what the sender and the receiver saw."""
        self.a.tell("stream", name=f"{name}.s", sending=True, **plan)
        self.b.tell("stream", name=f"{name}.r", sending=False, **plan)
        return self._both(strict)

    def pingpong(self, **plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Half round trips over the comms x (a to b) and y (b to a)."""
        self.a.tell("pingpong", send="x.s", receive="y.r", first=True, **plan)
        self.b.tell("pingpong", send="y.s", receive="x.r", first=False, **plan)
        return self._both(True)

    def link_plain(self, host: str, name: str = "p") -> int:
        """A connection of the baseline from a to b at this address; returns a's port."""
        port = self.b.ask("plain_listen", name=f"{name}.l", host=host)["port"]
        own: int = self.a.ask("plain_connect", name=name, host=host, port=port)["port"]
        self.b.ask("plain_accept", name=name, listener=f"{name}.l")
        return own

    def plain_stream(self, **plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Messages from a to b over the baseline's connection."""
        self.a.tell("plain_stream", name="p", sending=True, **plan)
        self.b.tell("plain_stream", name="p", sending=False, **plan)
        return self._both(True)

    def plain_pingpong(self, there: str = "p", back: str = "p", **plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Half round trips over the baseline's connection, or over one for each direction."""
        self.a.tell("plain_pingpong", send=there, receive=back, first=True, **plan)
        self.b.tell("plain_pingpong", send=back, receive=there, first=False, **plan)
        return self._both(True)

    def _both(self, strict: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        answers = self.a.hear(), self.b.hear()
        if strict:
            for answer in answers:
                _check("run", answer)
        return answers


def _check(what: str, answer: dict[str, Any]) -> None:
    if answer["result"] != 0:
        raise HarnessError(f"{what}: {answer}")
