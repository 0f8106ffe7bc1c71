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

from bagua_bench.signature import source_of

HOME = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "torchvision", "transformers", "numpy", "hydra-core")
_ENVIRONMENT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")
_PREFIXES = ("NCCL_", "GLOO_", "MALLOC_", "TORCH_NCCL_")
_NOT_MEASURED = ("figures", "display.py")  # parts of the suite that cannot change a number


@cache
def code_hash() -> str:
    """Hash of all sources that a measurement depends on."""
    digest = hashlib.sha256()
    for package in ("algorithms", "tasks", "bagua_bench"):
        for path in sorted((HOME / package).rglob("*")):
            name = path.relative_to(HOME).as_posix()
            if path.suffix in (".py", ".cpp", ".h") and not any(part in path.parts for part in _NOT_MEASURED):
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _source_hash(target: str) -> str:
    return hashlib.sha256(source_of(target).read_bytes()).hexdigest()[:12]


def code(cell: dict[str, Any]) -> dict[str, Any]:
    """Version, git commit and hash of its uncommitted changes (null outside a checkout), hashes of the sources."""
    return {
        "version": version("bagua-bench"),
        "git": _git(),
        "sources": code_hash(),
        "algo": _source_hash(cell["algo"]["_target_"]),
        "task": _source_hash(cell["task"]["_target_"]),
    }


@cache
def _git() -> dict[str, str | None] | None:
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
    """Processor, cores, memory, kernel and software; `fingerprint` is a hash of the hardware among them."""
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
