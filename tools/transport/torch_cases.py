"""The cases with which torch tests its own backends of process groups, run against any backend.

They come with torch (torch.testing._internal.distributed.distributed_test) and need the package expecttest. Many are
for backends that torch names. This runs those that are for gloo over any backend: they are imported for gloo and then
told which backend to use, in a process of its own for every backend.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import multiprocessing

import bagua_bench.transport  # noqa: F401  registers the backend

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
_NAMED = "gloo"
_CHOOSES = "test_accumulate_gradients_no_sync"  # cases that know, while they run, a few backends by their names
_SECONDS = 60  # that a case may take
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Failure)\b.*", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Of one case on one backend; the reason of what was skipped or failed is one line."""

    backend: str
    case: str
    what: str
    reason: str = ""


def run(backend: str, ranks: int, pattern: str = "") -> Iterator[Outcome]:
    """All cases whose names contain `pattern`, by name. ValueError, one line, if they cannot run."""
    if find_spec("expecttest") is None:
        raise ValueError("torch's test cases need the package expecttest: pip install expecttest")
    if backend not in (known := [name for name in dist.Backend.backend_list if name != dist.Backend.UNDEFINED]):
        raise ValueError(f"no backend {backend!r}; allowed: {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as folder:
        log = Path(folder) / "log"
        environment = {
            **os.environ,
            "BACKEND": _NAMED,
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "TMPDIR": folder,  # torch leaves a file for every case
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(_SECONDS),
            "GLOO_SOCKET_IFNAME": "lo",
            "BAGUA_NET_INTERFACES": "lo",
        }
        reader, writer = os.pipe()
        command = [sys.executable, "-m", __name__, str(writer), backend, pattern]
        with log.open("w") as output, os.fdopen(reader) as lines:
            process = subprocess.Popen(
                command, env=environment, pass_fds=[writer], stdout=output, stderr=output, start_new_session=True
            )
            os.close(writer)
            try:
                for line in lines:
                    yield Outcome(backend, *json.loads(line))
                if process.wait():
                    last = log.read_text().strip().splitlines()[-1:]
                    raise ValueError(f"torch's test cases ended with code {process.returncode}: {''.join(last)}")
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the ranks of the case that is under way."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def worse(outcomes: Sequence[Outcome], backend: str, than: str) -> list[Outcome]:
    """Cases that fail on `backend` and pass on the other one."""
    passed = {one.case for one in outcomes if one.backend == than and one.what == PASSED}
    return [one for one in outcomes if one.backend == backend and one.what == FAILED and one.case in passed]


def reasons(outcomes: Sequence[Outcome], backend: str, what: str) -> list[tuple[str, int]]:
    """Why cases were skipped or failed, the most frequent reason first."""
    return Counter(one.reason for one in outcomes if one.backend == backend and one.what == what).most_common()


class _Told(unittest.TestResult):
    """Writes down every case as it ends."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._lines = os.fdopen(descriptor, "w", buffering=1)
        os.set_inheritable(descriptor, False)

    def _tell(self, case: unittest.TestCase, what: str, reason: str = "") -> None:
        self._lines.write(json.dumps([case.id().rpartition(".")[2], what, reason]) + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test, PASSED)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test, SKIPPED, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, FAILED, _line_of(str(err[1])))

    addError = addFailure


def _line_of(text: str) -> str:
    """What the first rank that failed has said: of its traceback the last line that names an exception."""
    first = text.split("\nProcess ")[0].split("\nException raised from ")[0]
    found = _ERROR.findall(first)
    return (found[-1] if found else first.strip().partition("\n")[0])[:200]


def _suite(backend: str, pattern: str) -> unittest.TestSuite:
    from torch.testing._internal.distributed import distributed_test

    distributed_test.BACKEND = backend

    class Case(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """Ranks are forks of this process: torch starts them anew for every case, which takes seconds for each."""

        def setUp(self) -> None:
            super().setUp()  # type: ignore[no-untyped-call]
            self._start_processes(multiprocessing.get_context("fork").Process)

        def run_test(self, name: str, pipe: Any) -> None:
            if name.startswith(_CHOOSES):
                distributed_test.BACKEND = _NAMED
            super().run_test(name, pipe)

        def tearDown(self) -> None:
            ranks = self.processes
            super().tearDown()  # type: ignore[no-untyped-call]
            for rank in ranks:
                rank.join(5.0)
                rank.kill()

    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(Case) if pattern in name]
    return unittest.TestSuite(Case(name) for name in names)


if __name__ == "__main__":
    _suite(*sys.argv[2:]).run(_Told(int(sys.argv[1])))
