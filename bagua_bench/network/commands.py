"""Runs `ip`, `tc` and `sysctl`, and remembers every command so that it can be replayed by hand."""

from __future__ import annotations

import os
import shlex
import subprocess

from bagua_bench.processes.owner import PREFIX, mark

PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Folders of the tools; most users do not have all of them in their own PATH."""


class NetworkError(Exception):
    """The emulated network could not be built or measured; the message is one line."""


class Commands:
    """Runs the commands that build a network and keeps them, in order."""

    def __init__(self) -> None:
        self._log: list[str] = []

    def run(self, command: str) -> str:
        """Run a command line and return what it printed; NetworkError if it fails."""
        self._log.append(command)
        return run(command)

    def note(self, command: str) -> None:
        """Remember a command that is started elsewhere."""
        self._log.append(command)

    def log(self) -> list[str]:
        """Command lines that build the same network if run one after the other; names in them carry no process id."""
        return [command.replace(mark(), PREFIX) for command in self._log]


def run(command: str) -> str:
    """Run a command line, not interrupted by Ctrl-C, and return what it printed; NetworkError if it fails."""
    try:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            start_new_session=True,
            env={**os.environ, "PATH": PATH},
        )
    except FileNotFoundError as error:
        raise NetworkError(f"{error.filename}: not installed; it comes with iproute2, procps or util-linux") from None
    if done.returncode != 0:
        raise NetworkError(f"{command}: {(done.stderr.strip().splitlines() or ['failed'])[0]}")
    return done.stdout
