"""The commands around the transport, as the README shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bagua_bench.transport import watch
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
    assert "export BAGUA_NET_STREAMS=auto" in command("bagua_bench.transport", "env", "--streams", "auto").stdout
    wrong = command("bagua_bench.transport", "env", "--streams", "0")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].endswith("argument --streams: 0: allowed: 1 to 512 or auto")


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


TALKS = """
import sys, torch, torch.distributed as dist, bagua_bench.transport
rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("bagua_net", init_method=f"file://{place}", rank=rank, world_size=2)
x = torch.ones(1 << 20)
while True:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
"""


def test_watch_shows_what_the_streams_of_a_running_job_carry(built: tuple[Path, Path], tmp_path: Path) -> None:
    environment = {**os.environ, "BAGUA_NET_STREAMS": "3", "NCCL_SOCKET_IFNAME": "=lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TALKS, str(rank), str(tmp_path / "meeting")],
            cwd=HOME, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks[:1]:
            assert rank.stderr is not None
            assert "bagua_net in use" in rank.stderr.readline()
        pids = [str(rank.pid) for rank in ranks]
        lasting = subprocess.Popen(
            [sys.executable, "-m", "bagua_bench.transport", "watch", *pids, "--seconds=0.2"],
            cwd=HOME, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        done = command("bagua_bench.transport", "watch", *pids, "--json", "--seconds=2")
        assert done.returncode == 0, done.stderr
        flows = json.loads(done.stdout)
        assert {flow["process"] for flow in flows} == {rank.pid for rank in ranks}
        assert all(flow["rank"] == str(pids.index(str(flow["process"]))) for flow in flows)
        far = {(flow["peer"], flow["local"]): flow for flow in flows}
        busy = [flow for flow in flows if flow["sent"] > 1e6]
        assert busy, "an all-reduce in a loop sends"
        for flow in busy:  # what one end sends the other one receives; the two are not read at the same moment
            assert far[flow["local"], flow["peer"]]["received"] == pytest.approx(flow["sent"], rel=0.5)
            assert flow["rtt"] > 0
        shown = command("bagua_bench.transport", "watch", pids[0], "--once")
        assert shown.returncode == 0, shown.stderr
        assert "round trip" in shown.stdout
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    gone = command("bagua_bench.transport", "watch", pids[0], "--once")
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"bagua_bench.transport: process {pids[0]}: no such process; allowed: ")
    lasting.communicate(timeout=60)
    assert lasting.returncode == 0, "it ends with what it watches"
    wrong = command("bagua_bench.transport", "watch", "--seconds=0")
    assert wrong.returncode == 2
    assert "0: must be positive" in wrong.stderr.splitlines()[-1]


def test_what_the_kernel_says_of_connections_becomes_rates() -> None:
    before = watch.Connection(7, "1", "127.0.0.1:5", "127.0.0.1:6", 1000, 0, 0, 0, 1e-3, 2)
    after = replace(before, sent=5000, received=200, queued=300, again=6)
    other = replace(before, local="127.0.0.1:8")
    [flow] = watch.flows([before], [after, other], 2.0)
    assert (flow.sent, flow.received, flow.again, flow.queued) == (2000, 100, 2, 300)
