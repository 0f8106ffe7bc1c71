"""Shared by tests of emulated networks: which of them this machine supports, and what they leave on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bagua_bench.network import machine, namespaces
from bagua_bench.network.commands import run
from bagua_bench.processes import owner
from bagua_bench.processes.owner import PREFIX, is_stale
from tests.catalogue import resolved

OURS = re.compile(r"lo|eth\d+|port\d+|switch\d+|up\d+|site\d+|wan|tun\d+")
"""Links that a machine has anyway, or that the suite creates in its namespaces."""


def why_not(backend: str, inside: bool = True) -> str:
    """Why this process (or, if not `inside`, a command) cannot build networks with a backend; empty if it can."""
    try:
        machine.settle(resolved("network=1gbit", f"network.backend={backend}"))
    except ValueError as error:
        return str(error)
    return (
        "" if machine.is_privileged() or not inside else "needs root (without it, run these tests under unshare -Urnm)"
    )


def needs(backend: str, inside: bool = True) -> Callable[[Any], Any]:
    """Skip a test, with the reason, where this process (or a command that it starts) cannot use the backend."""
    reason = why_not(backend, inside)
    return pytest.mark.skipif(bool(reason), reason=reason)


def ours(names: Iterable[str]) -> list[str]:
    """Names with the mark of this process, of one it started, or of one that has ended; not of other running ones."""
    family = {process.pid for process in psutil.Process().children(recursive=True)} | {os.getpid()}
    marked = ((name, re.match(rf"{PREFIX}(\d+)-", name)) for name in names)
    return sorted(name for name, mark in marked if mark and (is_stale(name) or int(mark[1]) in family))


def is_of_others(command: str) -> bool:
    """Whether the namespaces or the folder that a command names belong to another running process."""
    named = re.findall(rf"{PREFIX}\d+-\d+-\w+-", command)
    return bool(named) and not ours(named)


def leftovers() -> dict[str, list[str]]:
    """What emulated networks could leave or change on this machine, which others may use at the same time."""
    processes = [p.info["cmdline"] or [""] for p in psutil.process_iter(["cmdline"])]
    modules = {"bagua_bench.network.relay", "bagua_bench.launch.agent", "bagua_bench.worker.rank"}
    return {
        "namespaces": ours(line.split()[0] for line in run("ip netns").splitlines()),
        "links": sorted(link["ifname"] for link in json.loads(run("ip -j link")) if OURS.match(link["ifname"])),
        "qdiscs": sorted(
            f"{q['dev']} {q['kind']}" for q in json.loads(run("tc -j qdisc show")) if OURS.match(q["dev"])
        ),
        "processes": sorted(
            line
            for line in (" ".join(p).strip() for p in processes if p[0] == sys.executable and modules & set(p))
            if not is_of_others(line)
        ),
        "hosts files": ours(path.name for path in Path("/etc/netns").glob("*")),
        "folders": ours(path.name for path in Path(tempfile.gettempdir()).glob("*-*-*-*-*")),
    }


def cleared() -> dict[str, list[str]]:
    """Leftovers, after removing those of killed processes, as the command does at every start."""
    namespaces.clear_stale()
    owner.folder().cleanup()
    return leftovers()


HOLD = """
import sys
from bagua_bench.network import star
from bagua_bench.configuration.network_shape import Link, Shape
link = Link(1e8, 1e-3, 0.0, 0.0)
with star.up(Shape((link,) * 3, sys.argv[1], "cubic", 2**22, 1, 0)):
    print("up", flush=True)
    sys.stdin.read()
"""


def hold(backend: str) -> subprocess.Popen[str]:
    """A process that keeps a network of three servers up until it is interrupted, or this one ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    return holder
