"""The commands around the transport, as the README shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.catalogue import HOME
from tests.transport.conftest import NEWEST
from tools.transport import compiled
from tools.transport.pair import Pair


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=HOME, capture_output=True, text=True, timeout=120, check=False
    )


def test_env_names_the_plugin_for_any_program_s_nccl(built: tuple[Path, Path]) -> None:
    done = command("bagua_bench.transport", "env", "--streams", "3")
    assert done.returncode == 0, done.stderr
    variables = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    assert variables["NCCL_NET_PLUGIN"] == str(built[1])
    assert (variables["NCCL_NET"], variables["BAGUA_NET_STREAMS"]) == ("BaguaNet", "3")


def test_bench_drives_any_library_that_has_the_table(built: tuple[Path, Path], tmp_path: Path) -> None:
    other, found = tmp_path / "other.so", tmp_path / "found.json"
    other.symlink_to(built[1])
    options = ["--loopback", "--rounds=1", "--sizes=64KiB", "--total=8MiB", f"--json={found}"]
    done = command("tools.transport", "bench", f"--lib={other}", "--symbol=ncclNetPlugin_v8", *options)
    assert done.returncode == 0, done.stderr
    ours, plain = json.loads(found.read_text())["summary"]
    assert (ours["transport"], plain["transport"]) == ("other.so v8", "plain connection")
    assert min(ours["rate"], plain["rate"]) > 0


def test_a_library_that_is_none_is_one_line(tmp_path: Path) -> None:
    done = command("tools.transport", "bench", f"--lib={tmp_path / 'none.so'}", "--loopback")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tools.transport: ")


def test_the_harness_is_compiled_again_when_a_source_is_newer(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "stale.so"
    library.touch()
    monkeypatch.setattr(compiled, "_LIBRARY", library)
    assert compiled.harness() == library
    assert library.stat().st_size == 0, "newer than every source"
    os.utime(library, (0, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"g\+\+ is not installed"):
        compiled.harness()
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "_LIBRARY", library)
    with Pair(compiled.harness(), built[1], NEWEST) as pair:
        pair.link()
