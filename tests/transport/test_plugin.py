"""The plugin through its tables: the scenarios that other plugins are tested with, between two processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.transport.conftest import Start
from tools.transport import shaped
from tools.transport.pair import HarnessError, Pair, Process

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
MIB = 2**20


def test_the_library_shows_its_own_functions_only_and_needs_no_c_plus_plus_library(
    built: tuple[Path, Path],
) -> None:
    """Another C++ library in the program that loads it, or a symbol of the same name there, must not get in."""
    plugin = built[1]
    shown = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert {f"ncclNetPlugin_v{version}" for version in VERSIONS} < names
    assert [name for name in names if not name.startswith(("bagua_net_", "ncclNetPlugin_v"))] == []
    needed = subprocess.run(["readelf", "-d", plugin], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needed
    assert "libstdc++" not in needed


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_describes_itself_and_moves_messages(start: Start, version: int) -> None:
    pair = start(f"ncclNetPlugin_v{version}")
    facts = pair.a.ask("facts")
    assert facts["result"] == 0
    assert (facts["devices"], facts["name"], facts["ptrSupport"], facts["maxRecvs"]) == (1, "lo", 1, 1)
    assert version < 10 or facts["maxP2pBytes"] == 2**30
    pair.link()
    pair.stream(size=100_000, count=60, window=8, check=version)


@pytest.mark.parametrize("size", [0, 1, 8, 23, 8191, 8192, 8193, 16384, 65535, 65536, 65537, MIB, MIB + 1])
def test_a_message_of_every_kind_of_size_arrives_whole(start: Start, size: int) -> None:
    pair = start()
    pair.link()
    sender, receiver = pair.stream(size=size, count=10, window=2)
    assert receiver["bytes"] == sender["bytes"] == 9 * size


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"BAGUA_NET_CRC": "1"},
        {"BAGUA_NET_STREAMS": "1"},
        {"BAGUA_NET_STREAMS": "13"},
        {"BAGUA_NET_ZERO_COPY": "0"},
        {"BAGUA_NET_CHUNK": "16384"},
        {"BAGUA_NET_CHUNK": str(64 * MIB)},
    ],
)
def test_random_sizes_and_contents_with_32_in_flight(start: Start, environment: dict[str, str]) -> None:
    pair = start(environment=environment)
    pair.link()
    pair.stream(size=MIB, count=150, window=32, check=11)


@pytest.mark.parametrize("kib", [16, 256])
def test_no_chunk_is_larger_than_asked_for(start: Start, kib: int) -> None:
    """But for a small rest of a message, which is not left for a chunk of its own."""
    pair = start(environment={"BAGUA_NET_CHUNK": str(kib << 10)})
    pair.link()
    pair.stream(size=4 * MIB, count=20, window=4)
    streams = pair.a.ask("report", name="x.s")["streams"]
    mean = sum(s["bytes_sent"] for s in streams) / sum(s["chunks_sent"] for s in streams)
    assert mean <= 1.1 * (kib << 10)


@pytest.mark.parametrize("wanted", ["1", "0"])
def test_large_messages_are_not_copied_unless_asked_to(start: Start, wanted: str) -> None:
    pair = start(environment={"BAGUA_NET_ZERO_COPY": wanted})
    pair.link()
    pair.stream(size=MIB, count=100, window=4)
    streams = pair.a.ask("report", name="x.s")["streams"]
    share = sum(s["bytes_zero_copy"] for s in streams) / sum(s["bytes_sent"] for s in streams)
    assert share > 0.8 if wanted == "1" else share == 0


def test_where_no_pipe_can_be_had_messages_are_copied(start: Start) -> None:
    pair = start()
    pair.link()
    pair.a.ask("use_all_files")
    pair.stream(size=4 * MIB, count=40, window=4, check=9)
    assert sum(s["bytes_zero_copy"] for s in pair.a.ask("report", name="x.s")["streams"]) == 0


def test_many_messages_of_eight_bytes(start: Start) -> None:
    pair = start()
    pair.link()
    pair.stream(size=8, count=20_000, window=32)


def test_both_directions_and_several_comms_at_once(start: Start) -> None:
    pair = start()
    pair.link("x")
    pair.connect(pair.b, pair.a, "y")
    pair.pingpong(size=30_000, count=300, idle=0)
    pair.link("z")
    pair.stream("z", size=300_000, count=40, window=4, check=3)
    pair.stream("x", size=300_000, count=40, window=4, check=4)


def test_a_ring_of_three(start: Start, built: tuple[object, object]) -> None:
    pair = start()
    third = Process(built[0], {"NCCL_SOCKET_IFNAME": "lo"})  # type: ignore[arg-type]
    try:
        third.ask("open", path=str(built[1]), symbol="ncclNetPlugin_v12")
        ring = (pair.a, pair.b, third)
        for k in range(3):
            pair.connect(ring[k], ring[(k + 1) % 3], f"n{k}")
        for k in range(3):
            ring[k].tell("stream", name=f"n{k}.s", sending=True, size=200_000, count=30, window=4, check=k + 1)
            ring[(k + 1) % 3].tell(
                "stream", name=f"n{k}.r", sending=False, size=200_000, count=30, window=4, check=k + 1
            )
            assert [ring[k].hear()["result"], ring[(k + 1) % 3].hear()["result"]] == [0, 0]
    finally:
        third.end()


def test_a_listener_is_used_again(start: Start) -> None:
    pair = start()
    handle = pair.b.ask("listen", name="l")["handle"]
    for k in range(5):
        pair.a.tell("link", connect={f"{k}.s": handle}, accept={})
        pair.b.tell("link", connect={}, accept={f"{k}.r": "l"})
        assert [pair.a.hear()["result"], pair.b.hear()["result"]] == [0, 0]
    for k in range(5):
        pair.stream(str(k), size=50_000, count=20, window=4, check=k + 1)


def test_two_connections_made_at_the_same_time_to_one_listener(start: Start) -> None:
    pair = start()
    handle = pair.b.ask("listen", name="l")["handle"]
    pair.a.tell("link", connect={"1.s": handle, "2.s": handle}, accept={})
    pair.b.tell("link", connect={}, accept={"1.r": "l", "2.r": "l"})
    assert [pair.a.hear()["result"], pair.b.hear()["result"]] == [0, 0]


def test_closing_with_data_in_flight_is_an_error_for_the_peer_and_no_crash(start: Start) -> None:
    pair = start()
    pair.link()
    plan = {"size": 4 * MIB, "window": 4, "check": 5}
    pair.b.tell("stream", name="x.r", sending=False, count=1000, **plan)
    pair.a.ask("stream", name="x.s", sending=True, count=20, **plan)
    pair.a.ask("drop", name="x.s", kind="send")
    assert pair.b.hear()["result"] == 6
    assert pair.b.ask("drop", name="x.r", kind="receive")["result"] == 0
    pair.link("again")
    pair.stream("again", size=1000, count=10, window=2, check=1)


def test_what_was_sent_before_a_close_still_arrives(start: Start) -> None:
    pair = start()
    pair.link()
    plan = {"size": MIB, "window": 8, "count": 20, "check": 5}
    pair.b.tell("stream", name="x.r", sending=False, **plan)
    pair.a.ask("stream", name="x.s", sending=True, **plan)
    pair.a.ask("drop", name="x.s", kind="send")
    assert pair.b.hear()["result"] == 0


def test_a_message_larger_than_its_buffer_is_invalid_usage(start: Start) -> None:
    pair = start()
    pair.link()
    pair.b.tell("stream", name="x.r", sending=False, size=1000, count=5, window=1)
    pair.a.tell("stream", name="x.s", sending=True, size=2000, count=5, window=1)
    pair.a.hear()
    assert pair.b.hear()["result"] == 5


def test_loaded_unloaded_and_loaded_again(start: Start, built: tuple[object, object]) -> None:
    pair = start()
    for _ in range(3):
        pair.link()
        pair.stream(size=10_000, count=20, window=4, check=2)
        pair.a.ask("drop", name="x.s", kind="send")
        pair.b.ask("drop", name="x.r", kind="receive")
        pair.b.ask("drop", name="x.l", kind="listener")
        for side in (pair.a, pair.b):
            assert side.ask("close")["result"] == 0
            assert side.ask("state")["threads"] == 1
            assert side.ask("open", path=str(built[1]), symbol="ncclNetPlugin_v11")["opened"]


def test_a_thousand_connections_leave_nothing_behind(start: Start) -> None:
    pair = start()
    before = pair.a.ask("state")
    assert pair.a.ask("cycle", count=1000)["result"] == 0
    after = pair.a.ask("state")
    assert (after["fds"], after["threads"]) == (before["fds"], before["threads"])


@pytest.mark.parametrize(
    "environment",
    [
        {"BAGUA_NET_STREAMS": "0"},
        {"BAGUA_NET_STREAMS": "many"},
        {"BAGUA_NET_CHUNK": "1000"},
        {"BAGUA_NET_TIMEOUT": "soon"},
        {"BAGUA_NET_SECRET_FILE": "/nowhere"},
        {"BAGUA_NET_INTERFACES": "eht7"},
    ],
)
def test_a_wrong_setting_is_refused(start: Start, environment: dict[str, str]) -> None:
    with pytest.raises(HarnessError):
        start(environment=environment)


def _secrets(start: Start, built: tuple[object, object], of_a: str, of_b: str, seconds: int) -> Pair:
    pair = start(environment={"BAGUA_NET_SECRET_FILE": of_b, "BAGUA_NET_CONNECT_TIMEOUT": str(seconds)})
    pair.a.end()
    variables = {
        "NCCL_SOCKET_IFNAME": "lo",
        "BAGUA_NET_SECRET_FILE": of_a,
        "BAGUA_NET_CONNECT_TIMEOUT": str(seconds),
    }
    pair.a = Process(built[0], variables)  # type: ignore[arg-type]
    pair.a.ask("open", path=str(built[1]), symbol="ncclNetPlugin_v12")
    return pair


@pytest.mark.parametrize("same", [True, False])
def test_who_does_not_know_the_secret_cannot_join(
    start: Start, built: tuple[object, object], tmp_path: object, same: bool
) -> None:
    files = []
    for name, text in (("a", "correct horse"), ("b", "correct horse" if same else "battery staple")):
        path = tmp_path / name  # type: ignore[operator]
        path.write_text(text)
        files.append(str(path))
    seconds = 20 if same else 1  # only a failure takes so long
    pair = _secrets(start, built, *files, seconds)
    handle = pair.b.ask("listen", name="l")["handle"]
    pair.b.tell("link", connect={}, accept={"r": "l"}, seconds=2 * seconds)
    result = pair.a.ask("link", connect={"s": handle}, accept={}, seconds=60)["result"]
    assert (result, pair.b.hear()["result"]) == ((0, 0) if same else (6, -1))


def test_a_measurement_that_is_ended_leaves_no_namespaces(built: tuple[object, object]) -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tools.transport", "bench", "--latency", "--sizes=1MiB"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        made = [Path("/run/netns", f"bb{running.pid}{side}") for side in "ab"]
        until = time.monotonic() + 90
        while not all(path.exists() for path in made) and time.monotonic() < until:
            time.sleep(0.05)
        assert all(path.exists() for path in made)
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=90)[1] == "interrupted\n"
    assert running.returncode == 130
    assert not any(path.exists() for path in made)


def test_streams_of_one_connection_use_both_interfaces(built: tuple[object, object]) -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)
    with shaped.pair(links=2) as (a, b):
        variables = {"BAGUA_NET_INTERFACES": "bb0,bb1"}
        with Pair(*built, "ncclNetPlugin_v12", variables, (a.prefix, b.prefix)) as pair:  # type: ignore[arg-type]
            facts = pair.a.ask("facts")
            assert (facts["devices"], facts["name"]) == (1, "bb0+bb1")
            pair.link()
            for interface, rate in (("bb0", 160e6), ("bb1", 40e6)):
                shaped.limit_flows(a, {}, rate, interface)
            before = _sent(a)
            pair.stream(size=MIB, window=8, count=40, check=6)
            moved = [after - earlier for after, earlier in zip(_sent(a), before, strict=True)]
            assert sum(moved) > 10 * MIB
            assert 2 < moved[0] / moved[1] < 8  # in proportion to the rates, so that neither waits for the other


def _sent(site: shaped.Site) -> list[int]:
    return [int(site.run("cat", f"/sys/class/net/bb{k}/statistics/tx_bytes")) for k in range(2)]


def test_a_small_message_is_not_acknowledged_alone(built: tuple[object, object]) -> None:
    if reason := shaped.unavailable():
        pytest.skip(reason)
    with (
        shaped.pair() as (a, b),
        Pair(*built, "ncclNetPlugin_v12", {"NCCL_SOCKET_IFNAME": "bb0"}, (a.prefix, b.prefix)) as pair,  # type: ignore[arg-type]
    ):
        pair.link()
        pair.link_back()
        pair.pingpong(size=8, count=21, idle=0)
        time.sleep(0.2)  # the kernel's timer acknowledges the last one, and forgets that it had been asked to wait
        packets = "/sys/class/net/bb0/statistics/tx_packets"
        before = int(a.run("cat", packets))
        pair.pingpong(size=8, count=4000, idle=0)
        sent = int(a.run("cat", packets)) - before
        assert 4000 <= sent < 1.75 * 4000  # the messages, and one acknowledgement for two of those that came


def test_the_counters_of_every_open_comm_can_be_read(start: Start) -> None:
    pair = start()
    for name in ("x", "z"):
        pair.link(name)
    pair.stream("z", size=100_000, window=4, count=20)
    comms = pair.a.ask("report_all")["comms"]
    assert len(comms) == 2
    assert sorted(sum(stream["bytes_sent"] for stream in comm) for comm in comms) == [0, 2_000_000]
    pair.a.ask("drop", name="z.s", kind="send")
    assert len(pair.a.ask("report_all")["comms"]) == 1
