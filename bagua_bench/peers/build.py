"""Builds peers from their published sources; wheels are kept in the user's cache folder. No torch import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path

_HOROVOD = "horovod==0.28.1"
_TOOLS = ("setuptools<81", "wheel", "cmake>=3.20,<4", "packaging", "cffi", "cloudpickle", "psutil", "pyyaml")
_FEATURES = {  # gloo and torch only
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
}
_COMPILER = """#!/bin/bash
# Horovod asks for C++14, of which the headers of torch know nothing any more.
given=()
for argument in "$@"; do
    [[ $argument == -std=* ]] || given+=("$argument")
done
exec {compiler} -std=gnu++17 "${{given[@]}}"
"""


class BuildFailed(RuntimeError):
    """A wheel could not be built or installed, with the end of what the tool printed."""


def horovod(again: bool) -> tuple[Path, bool]:
    """Horovod's wheel for this Python and this torch, and whether it was built now, which takes minutes."""
    folder = user_cache_path("bagua-bench") / "wheels" / f"torch-{version('torch')}-{sysconfig.get_platform()}"
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    known = sorted(folder.glob(f"horovod-*-{tag}-*.whl"))
    if known and not again:
        return known[-1], False
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or shutil.which("make") is None:
        raise BuildFailed("horovod: needs a C++17 compiler and make, which are not here")
    with tempfile.TemporaryDirectory(prefix="bagua-bench-build-") as name:
        scratch = Path(name)
        wrapper, tools, out = scratch / "c++", scratch / "tools", scratch / "out"
        wrapper.write_text(_COMPILER.format(compiler=compiler))
        wrapper.chmod(0o755)
        _pip("install", "--target", str(tools), *_TOOLS)
        environment = {
            **_FEATURES,
            "CXX": str(wrapper),
            "HOROVOD_CMAKE": str(tools / "cmake" / "data" / "bin" / "cmake"),
            "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
            "PYTHONPATH": str(tools),
            "TMPDIR": name,
        }
        _pip("wheel", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--wheel-dir", str(out), _HOROVOD,
             more=environment)  # fmt: skip
        [wheel] = out.glob("horovod-*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder)), True


PEERS = {"horovod": horovod}


def install(wheel: Path) -> None:
    """Install a wheel and what it needs into this Python's environment."""
    _pip("install", "--force-reinstall", "--no-deps", str(wheel))  # or pip keeps one of the same version
    _pip("install", str(wheel))


def _pip(*arguments: str, more: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(more or {})})
    if done.returncode != 0:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise BuildFailed(f"{end}\npip {arguments[0]} {arguments[-1]}: failed")
