"""`python -m tests.covered [pytest's arguments]` (make coverage): which lines the tests run.

A copy of the repository, in build/covered, is compiled with gcov's counts and tested there under coverage.py, processes
and forks included. It prints the share of each package, and the lines not run of packages whose lines must all be run.
The exit code is that of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.covered import gcov

HOME = Path(__file__).resolve().parents[2]
TREE = HOME / "build" / "covered"
SHOWN = ("algorithms/", *(f"bagua_bench/{room}/" for room in ("engine", "worker", "comm", "results", "transport")))
"""Packages whose lines are printed if they were not run."""


def copy() -> None:
    """Copy the files that git tracks, and those that it does not ignore."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=HOME, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (HOME / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, TREE / name)


def test(arguments: Iterable[str]) -> int:
    environment = {**os.environ, "PYTHONPATH": str(TREE), "COVERAGE_FILE": str(TREE / ".coverage"), gcov.ASKED: "1"}
    workers = str(len(os.sched_getaffinity(0)))
    run = ["coverage", "run", "-m", "pytest", "-n", workers, "-p", "no:cacheprovider"]
    code = subprocess.run([sys.executable, "-m", *run, *arguments], cwd=TREE, env=environment).returncode
    for command in (["combine", "--quiet"], ["json", "--quiet", "-o", str(TREE / "coverage.json")]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=TREE, env=environment, check=True)
    return code


def python() -> Mapping[str, dict[int, bool]]:
    """The statements of every Python source file, and whether they were run."""
    files = json.loads((TREE / "coverage.json").read_text())["files"]
    return {
        name: {**dict.fromkeys(file["executed_lines"], True), **dict.fromkeys(file["missing_lines"], False)}
        for name, file in files.items()
    }


def report(title: str, found: Mapping[str, dict[int, bool]]) -> None:
    packages: dict[str, list[bool]] = defaultdict(list)
    for name, lines in found.items():
        packages[str(Path(name).parent)] += lines.values()
    print(f"\n{title}, lines run by the tests")
    for package, runs in sorted(packages.items()):
        print(f"{sum(runs) / max(1, len(runs)):7.1%} of {len(runs):5d}  {package}")
    total = [run for runs in packages.values() for run in runs]
    print(f"{sum(total) / max(1, len(total)):7.1%} of {len(total):5d}  all")
    for name, lines in sorted(found.items()):
        missing = [number for number, run in sorted(lines.items()) if not run]
        if missing and name.startswith(SHOWN):
            print(f"not run: {name}: {', '.join(ranges(missing))}")


def ranges(numbers: list[int]) -> list[str]:
    """3, 4, 5, 9 as 3-5 and 9."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in found]


def main() -> int:
    copy()
    gcov.build(TREE)
    code = test(sys.argv[1:])
    report("Python", python())
    report("C++", gcov.lines(TREE))
    return code


if __name__ == "__main__":
    sys.exit(main())
