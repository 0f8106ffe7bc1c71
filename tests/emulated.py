"""What tests of emulated networks share: which of them this machine can have, and what is on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bagua_bench.network import machine
from bagua_bench.network.commands import run
from tests.catalogue import resolved


def why_not(backend: str) -> str:
    """Why this process cannot build networks with a backend; empty if it can."""
    try:
        machine.settle(resolved("network=1gbit", f"network.backend={backend}"))
    except ValueError as error:
        return str(error)
    return "" if machine.is_privileged() else "needs root (whoever is not runs these tests under unshare -Urnm)"


def needs(backend: str) -> Callable[[Any], Any]:
    """Skip a test where the backend cannot be had, with the reason."""
    reason = why_not(backend)
    return pytest.mark.skipif(bool(reason), reason=reason)


def traces() -> dict[str, Any]:
    """What emulated networks would leave on this machine: namespaces, links, qdiscs, devices, processes, folders."""
    processes = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    ours = ("bagua_bench.network.relay", "bagua_bench.launch.agent", "bagua_bench.training.worker")
    return {
        "namespaces": sorted(line.split()[0] for line in run("ip netns").splitlines()),
        "links": sorted(link["ifname"] for link in json.loads(run("ip -j link"))),
        "qdiscs": sorted(f"{q['dev']} {q['kind']}" for q in json.loads(run("tc -j qdisc show"))),
        "processes": sorted(line for line in processes if any(name in line for name in ours)),
        "folders": sorted(path.name for path in Path(tempfile.gettempdir()).glob("bagua-bench-*-*-*")),
    }


HOLD = """
import sys, time
from bagua_bench.network import star
from bagua_bench.network.shape import Link, Shape
link = Link(1e8, 1e-3, 0.0, 0.0)
with star.up(Shape((link,) * 3, sys.argv[1], "cubic", 2**22, 1, 0)):
    print("up", flush=True)
    time.sleep(60)
"""


def hold(backend: str) -> subprocess.Popen[str]:
    """A process that keeps a network of three servers up until it is interrupted."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    return holder
