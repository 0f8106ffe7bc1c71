"""Compiles C++ for the harness: its own part, and variants of the transport. The package builds none of it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRANSPORT = HERE.parents[1] / "bagua_bench/transport/cpp"
_LIBRARY = HERE / "libbagua-net-harness.so"
_COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{TRANSPORT}"]


def harness() -> Path:
    """The part of the harness that runs in its processes, compiled where it is missing or older than its sources.

    RuntimeError if that fails.
    """
    sources = sorted((HERE / "native").glob("*.cpp"))
    depends = [*sources, *(HERE / "native").glob("*.h"), *TRANSPORT.rglob("*.h")]
    if not _LIBRARY.exists() or _LIBRARY.stat().st_mtime < max(path.stat().st_mtime for path in depends):
        with tempfile.TemporaryDirectory(dir=_LIBRARY.parent) as name:  # another process may do the same at this moment
            built = Path(name) / _LIBRARY.name
            link(sources, ["-O3", "-Wall", "-Wextra", "-Werror"], built)
            built.replace(_LIBRARY)
    return _LIBRARY


def link(sources: Sequence[Path], flags: Sequence[str], library: Path) -> None:
    """Compile C++ files side by side and link them to a library; objects stay beside it. RuntimeError if that fails."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compile, [*_COMMON, *flags], library.parent), sources))
    run("g++", *_COMMON, *flags, "-shared", "-o", str(library), *objects, "-ldl")


def _compile(flags: Sequence[str], folder: Path, source: Path) -> str:
    target = str(folder / f"{source.stem}.o")
    run("g++", *flags, "-c", str(source), "-o", target)
    return target


def run(*command: str) -> str:
    """What a command printed; RuntimeError if it is not installed, or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(command)}: {error.stderr[-2000:]}") from None
