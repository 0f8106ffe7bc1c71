"""What a number was measured on: code, machine, software, environment. No torch import."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bagua_bench.configuration.cell import Cell
from bagua_bench.sources.closure import closure_hash

HOME = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "torchvision", "transformers", "numpy", "hydra-core")
_OF_BAGUA_NET = ("CONGESTION", "CRC", "EAGER", "HELPERS", "ORDER", "ZERO_COPY")  # the others are in the configuration
_ENVIRONMENT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", *(f"BAGUA_NET_{x}" for x in _OF_BAGUA_NET))
_PREFIXES = ("NCCL_", "GLOO_", "MALLOC_", "TORCH_NCCL_")
_SIMULATES = ("bagua_bench.simulate.run", "bagua_bench.results.summary")
_RUNS = (
    "bagua_bench.launch.local",
    "bagua_bench.launch.shaped",
    "bagua_bench.launch.crew",
    "bagua_bench.results.summary",
)
"""The code behind a number: these modules, and all that they import or start."""


def hashes(cell: Cell) -> dict[str, str]:
    """Hashes of all sources that the cell's numbers depend on: the suite's, the algorithm's and the task's.

    Each covers everything that the sources import. A change anywhere else does not invalidate a number.
    """
    roots = {
        "sources": _SIMULATES if cell.mode == "simulate" else _RUNS,
        "algo": (cell.algo.target.rpartition(".")[0],),
        "task": (cell.task.target.rpartition(".")[0],),
    }
    return {key: closure_hash(*modules) for key, modules in roots.items()}


def code(cell: Cell) -> dict[str, Any]:
    """Version, git commit and hash of its uncommitted changes (null outside a checkout), hashes of the sources."""
    return {"version": version("bagua-bench"), "git": commit(), **hashes(cell)}


@cache
def commit() -> dict[str, str | None] | None:
    """Git's commit and the hash of uncommitted changes to it; None outside a checkout."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(HOME), *arguments], capture_output=True, check=True).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", "*.py", "*.cpp", "*.h", "*.yaml", "setup.py", "pyproject.toml")
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "diff": hashlib.sha256(changes).hexdigest()[:12] if changes else None}


@cache
def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel and software; `fingerprint` is a hash of the hardware."""
    hardware = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }
    fingerprint = hashlib.sha256(repr({**hardware, "memory": hardware["memory"] >> 30}).encode()).hexdigest()[:12]
    software = {"kernel": platform.release(), "python": platform.python_version()}
    return {
        "fingerprint": fingerprint,
        **hardware,
        **software,
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def environment() -> dict[str, str]:
    """The environment variables that may change a result, and no others."""
    return {key: value for key, value in sorted(os.environ.items()) if key in _ENVIRONMENT or key.startswith(_PREFIXES)}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [path.read_text().partition("Model:")[2].splitlines()[0].strip() for path in found]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
