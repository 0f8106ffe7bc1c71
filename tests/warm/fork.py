"""Turns a fork of a process that has imported everything into the process that was asked for.

`python -m tests.warm.fork ARGUMENTS` is `python ARGUMENTS` whose own Python processes are forks of it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import inspect
import io
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch

from tests.covered import gcov

_HOME = Path(__file__).resolve().parents[2]
_FREE, _LAST = 1000, 2**20  # above all file descriptors in use; above all that there can be
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x1000, 0x4000, 0x80000, 2
_OPTIONS = ("-u",)  # options of the interpreter that are supported


@dataclass
class Command:
    """`python ARGUMENTS` (-m MODULE or a script) in a folder; its descriptors are the three standard streams."""

    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]

    def prepare(self) -> None: ...

    def become(self, descriptors: Sequence[int]) -> NoReturn:
        os.setsid()
        _hold(descriptors)
        run(self)


@dataclass
class Call:
    """A module's function in a separate process; its descriptors are the standard streams and those given to it."""

    module: str
    name: str
    arguments: bytes
    needed: Sequence[str] = ()

    def prepare(self) -> None:
        """Import what the forks would import again and again."""
        for name in (self.module, *self.needed):
            import_module(name)

    def become(self, descriptors: Sequence[int]) -> NoReturn:
        code = 1
        try:
            _hold(descriptors)
            _renew()
            _open_streams(unbuffered=True)
            torch.set_num_threads(1)
            getattr(import_module(self.module), self.name)(range(3, len(descriptors)), self.arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            gcov.dump()
            os._exit(code)


def is_python(arguments: Sequence[str]) -> bool:
    """Whether a command line starts a module or a script with this interpreter."""
    rest = [text for text in arguments[1:] if text not in _OPTIONS]
    own = bool(rest) and arguments[0] == sys.executable
    return own and (rest[0].endswith(".py") or (rest[0] == "-m" and len(rest) > 1))


def prepare() -> None:
    """Make this process and its forks fork where they would start Python."""
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


_EXECUTE = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_SIGNATURE = inspect.signature(_EXECUTE)
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _execute_child(self: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces what Popen does between making its pipes and having a child."""
    given = _SIGNATURE.bind(self, *args, **kwargs).arguments
    arguments = [os.fspath(text) for text in given["args"]] if not isinstance(given["args"], str) else [given["args"]]
    namespace, arguments = _split(arguments)
    plain = not (given["shell"] or given["executable"] or given["preexec_fn"] or given["pass_fds"])
    if not plain or not is_python(arguments):
        _EXECUTE(self, *args, **kwargs)
        return
    inherited = (given["p2cread"], given["c2pwrite"], given["errwrite"])
    streams = [given_ if given_ != -1 else own for own, given_ in enumerate(inherited)]
    environment = dict(os.environ if given["env"] is None else given["env"])
    self.pid = os.fork()
    if not self.pid:
        if given["start_new_session"]:
            os.setsid()
        if namespace is not None:
            _enter(namespace)
        _hold(streams)
        run(Command(arguments[1:], os.fspath(given["cwd"] or Path.cwd()), environment))
    self._child_created = True
    self._close_pipe_fds(*(given[name] for name in _PIPES))


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The network namespace in which a command should run, and the command."""
    return (arguments[3], arguments[4:]) if arguments[:3] == ["ip", "netns", "exec"] else (None, arguments)


def _enter(namespace: str) -> None:
    """What `ip netns exec` does before it starts a command."""
    with Path("/run/netns", namespace).open() as there:
        _checked(_LIBC.setns(there.fileno(), _CLONE_NEWNET))
    _checked(_LIBC.unshare(_CLONE_NEWNS))
    _checked(_LIBC.mount(b"", b"/", b"none", _MS_REC | _MS_SLAVE, None))
    _checked(_LIBC.umount2(b"/sys", _MNT_DETACH))
    _checked(_LIBC.mount(namespace.encode(), b"/sys", b"sysfs", 0, None))
    for file in Path("/etc/netns", namespace).glob("*"):
        _checked(_LIBC.mount(bytes(file), f"/etc/{file.name}".encode(), b"none", _MS_BIND, None))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _hold(descriptors: Sequence[int]) -> None:
    """Keep these descriptors, numbered from 0, and no others."""
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _FREE) for descriptor in descriptors]
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
    os.closerange(len(copies), _LAST)


def _renew() -> None:
    """Reset what a new process would have to itself."""
    gc.freeze()  # collecting a file object of the parent would close a descriptor that is now another's
    atexit._clear()
    tempfile.tempdir = None  # it is found anew, from the environment of the fork
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def run(command: Command) -> NoReturn:
    """Act as a new interpreter that was started with a command line."""
    code = 1
    try:
        _renew()
        os.environ.clear()
        os.environ.update(command.environment)
        os.chdir(command.folder)
        arguments = [text for text in command.arguments if text not in _OPTIONS]
        _open_streams(unbuffered="-u" in command.arguments)
        _title([sys.executable, *command.arguments])
        sys.orig_argv = [sys.executable, *command.arguments]
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        code = _exit_code(lambda: _execute(arguments))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        gcov.dump()
        os._exit(code)


def _execute(arguments: Sequence[str]) -> None:
    base = [path for path in sys.path if path not in ("", str(_HOME))]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        name, sys.argv = arguments[1], list(arguments[1:])
        first = str(Path.cwd())
    else:
        sys.argv = list(arguments)
        first = str(Path(arguments[0]).resolve().parent)
    sys.path[:] = [*([] if os.environ.get("PYTHONSAFEPATH") else [first]), *paths, *base]
    if arguments[0] == "-m":
        found = find_spec(name)
        is_package = found is not None and found.submodule_search_locations is not None
        sys.modules.pop(f"{name}.__main__" if is_package else name, None)  # it runs again, without a warning
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def _exit_code(body: Callable[[], None]) -> int:
    try:
        body()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _open_streams(unbuffered: bool) -> None:
    """Make new objects for the standard streams; loggers that wrote to the old ones write to these."""
    old = (sys.stdout, sys.stderr)
    out, err = (open(number, "wb", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(out, "utf-8", write_through=unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        err, "utf-8", "backslashreplace", line_buffering=True, write_through=unbuffered
    )
    loggers = [logging.root, *(one for one in logging.Logger.manager.loggerDict.values() if hasattr(one, "handlers"))]
    for handler in (handler for logger in loggers for handler in logger.handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream in old:
            handler.stream = sys.stdout if handler.stream is old[0] else sys.stderr


def _title(arguments: Sequence[str]) -> None:
    """Show a command line in `ps`, in place of the longer one of the process that was forked."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(argument) for argument in arguments)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    import torch._dynamo  # the first optimizer would import it

    prepare()
    run(Command(sys.argv[1:], str(Path.cwd()), dict(os.environ)))
