"""The same transport, compiled with sanitizers, put through transfers, faults and strangers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.transport import compiled, faults, siege
from tools.transport.pair import GROUP, Pair

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
_RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}
_SYMBOL = "ncclNetPlugin_v12"


@contextmanager
def built(kind: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """The plugin with a sanitizer, and the environment for a process that loads it. RuntimeError without g++."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "libnccl-net-sanitized.so"
        compiled.link(sorted(compiled.TRANSPORT.rglob("*.cpp")), ["-O1", "-g", *SANITIZERS[kind]], library)
        # The sanitizer looks for __cxa_throw when it starts, so the C++ library must be there already.
        preloaded = [
            compiled.run("g++", f"-print-file-name={name}").strip() for name in (_RUNTIME[kind], "libstdc++.so.6")
        ]
        options = f"exitcode=99:halt_on_error=1:detect_leaks=0:log_path={folder / 'finding'}"
        environment = {"LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": options, "TSAN_OPTIONS": options}
        try:
            yield library, environment
        finally:
            findings = [path.read_text(errors="replace") for path in folder.glob("finding*")]
            if findings:
                raise RuntimeError(f"{kind} sanitizer: {findings[0][:3000]}")


def torture(kind: str, strangers: int, chunks: int) -> None:
    """Transfers in both directions, strangers and malformed chunks under a sanitizer. RuntimeError for any finding."""
    with built(kind) as (library, environment):
        for helpers in ("0", "1"):
            variables = {**environment, "BAGUA_NET_CRC": "1", "BAGUA_NET_HELPERS": helpers}
            with Pair(compiled.harness(), library, _SYMBOL, variables) as pair:
                pair.link()
                pair.connect(pair.b, pair.a, "y")
                pair.stream(size=500_000, count=60, window=32, check=3)
                pair.pingpong(size=10_000, count=50, idle=0)
                for process in (pair.a, pair.b):
                    process.ask("cycle", count=5)
        with Pair(compiled.harness(), library, GROUP, environment) as pair:
            pair.link()
            for idle in (0, 20):  # callers that poll, callers that wait
                pair.stream(size=500_000, count=60, window=32, check=4, idle=idle)
                pair.stream(size=4_000_000, count=20, window=8, check=4, idle=idle)  # without a copy
                pair.pingpong(size=10_000, count=50, idle=idle)
            for process in (pair.a, pair.b):
                process.ask("close")
        where = (compiled.harness(), library, _SYMBOL)
        for found in (
            siege.of_handshake(*where, strangers, 1, environment),
            siege.of_chunks(*where, chunks, 1, environment),
        ):
            if found.lost or found.joined:
                raise RuntimeError(f"{kind} sanitizer: {found}")
        for fault in faults.run(*where, 3, 1, False, environment):
            if not set(fault.results) <= {0, 2, 6}:
                raise RuntimeError(f"{kind} sanitizer: {fault}")
