"""Starts commands and functions in forks of a process that has imported everything, and starts that process once."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.warm.fork import Call, Command

_HOME = Path(__file__).resolve().parents[2]
_SOCKET = "BAGUA_TESTS_WARM"
_ROOM = "." * 1500  # for the command lines of forks


def address() -> str:
    """Where the forking process listens. It is started if there is none, and ends with the process that started it."""
    if _SOCKET not in os.environ:
        folder = tempfile.mkdtemp(prefix="warm-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = f"{folder}/socket"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_HOME)}
        command = [sys.executable, "-m", "tests.warm.server", path, str(os.getpid()), _ROOM]
        server = subprocess.Popen(command, cwd=_HOME, env=environment, stdin=subprocess.DEVNULL)
        atexit.register(_end, server)
        while not Path(path).exists():
            assert server.poll() is None, "the process that forks did not start"
            time.sleep(0.02)
        os.environ[_SOCKET] = path
    return os.environ[_SOCKET]


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait()


class Running:
    """A forked process, with as much of `Popen`'s interface as tests use."""

    def __init__(self, start: Command | Call, descriptors: Sequence[int]) -> None:
        path = address()
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            with contextlib.suppress(ConnectionRefusedError):  # it does not listen yet
                self._line.connect(path)
                break
            time.sleep(0.02)
        packed = pickle.dumps(start)
        socket.send_fds(self._line, [struct.pack("<q", len(packed))], list(descriptors))
        self._line.sendall(packed)
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        (number,) = struct.unpack("<q", self._line.recv(8, socket.MSG_WAITALL))
        return int(number)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the number of the signal that ended the process."""
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = self._number()
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    folder: Path, *arguments: str, out: IO[bytes], err: IO[bytes], env: Mapping[str, str] | None = None
) -> Running:
    """Start `python ARGUMENTS` in a folder."""
    with Path(os.devnull).open() as nothing:
        command = Command(arguments, str(folder), {**os.environ, **(env or {})})
        return Running(command, [nothing.fileno(), out.fileno(), err.fileno()])


def run(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 800.0
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a folder to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        running = start(folder, *arguments, out=out, err=err, env=env)
        try:
            code = running.wait(timeout)
        finally:
            running.kill()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
        return subprocess.CompletedProcess(list(arguments), code, *texts)


def call(
    function: Callable[[Sequence[int], bytes], None],
    arguments: bytes,
    descriptors: Sequence[int],
    modules: Sequence[str] = (),
) -> Running:
    """Call a module's function in a separate process, with copies of descriptors. It prints where this process does.

    `modules` are those that it will need.
    """
    with Path(os.devnull).open() as nothing:
        wanted = Call(function.__module__, function.__name__, arguments, tuple(modules))
        return Running(wanted, [nothing.fileno(), 1, 2, *descriptors])
