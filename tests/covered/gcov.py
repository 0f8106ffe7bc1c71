"""Line counts of C++: builds with them, makes processes write them, and reads them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ASKED = "BAGUA_TESTS_GCOV"
_LIBRARIES = re.compile(r"/\S+/(?:libnccl-net-bagua|libbagua-net-harness|librelay|_kernels)\S*\.so")


def build(tree: Path) -> None:
    """Compile the compiled parts of a copy of the repository, with counts."""
    flags = f"--coverage -include {tree / 'tests/covered/dump.h'}"
    environment = {**os.environ, "CFLAGS": flags, "CXXFLAGS": flags, "LDFLAGS": "--coverage"}
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, env=environment, check=True)
    assert len([*tree.glob("algorithms/**/*.so"), *tree.glob("bagua_bench/**/*.so")]) == 3, "not all parts were built"


def dump() -> None:
    """Make this process write its counts; for processes that end without a normal exit."""
    if ASKED in os.environ:
        for library in set(_LIBRARIES.findall(Path("/proc/self/maps").read_text())):
            ctypes.CDLL(library).bagua_gcov_dump()


def end_gently() -> None:
    """Make the harness's processes write their counts before they are killed."""
    from tools.transport.pair import Process

    kill = Process.end

    def end(self: Process) -> None:
        self.child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stopped, or in the middle of a dump
            self.child.wait(2)
        kill(self)

    Process.end = end  # type: ignore[method-assign]


def lines(tree: Path) -> Mapping[str, dict[int, bool]]:
    """The lines of every source file, and whether they were run."""
    found: dict[str, dict[int, bool]] = defaultdict(dict)
    for counts in tree.rglob("*.gcda"):
        command = ["gcov", "--json-format", "--stdout", "--object-directory", str(counts.parent), str(counts)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
        for part in (json.loads(text) for text in done.stdout.splitlines() if text.strip()):
            for file in part["files"]:
                path = (tree / file["file"]).resolve()
                if path.is_relative_to(tree) and path.name != "dump.h":
                    known = found[str(path.relative_to(tree))]
                    for line in file["lines"]:
                        number = line["line_number"]
                        known[number] = known.get(number, False) or line["count"] > 0
    return found
