"""Paths with delay and loss, and how many streams they get."""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import star
from bagua_bench.transport import native
from tests.emulated import needs
from tests.transport.conftest import NEWEST, Start
from tools.transport import far, lossy, measure, orders, rough, torch_bench, wan
from tools.transport.bench import PLAIN
from tools.transport.pair import Pair
from tools.transport.strangers import Target


@needs("link")
@pytest.mark.usefixtures("built")
def test_where_packets_are_lost_several_streams_carry_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossy, "CONTROLS", ("reno",))
    monkeypatch.setattr(lossy, "LOSSES", {0.01: 5})
    record = measure.run(measure.IMPAIRED, 1)
    [row] = record["summary"]
    assert row["rate"] > row["plain"], "four congestion windows against one"
    assert row["plain"] < 10e6, "1.8 MB/s by the square root law of TCP, more at the start"
    [line] = measure.lines(record)
    assert f"{row['times_plain']:.2f} x" in line


def _streams_of(pair: Pair) -> int:
    pair.link()
    pair.stream(size=1, count=20, window=4)
    [streams] = pair.a.ask("report_all")["comms"]
    return len(streams)


def test_a_short_path_has_the_fewest_streams(start: Start) -> None:
    assert _streams_of(start(environment={"BAGUA_NET_STREAMS": "auto"})) == 4


@needs("link")
@pytest.mark.parametrize(("delay", "streams"), [(0.005, range(20, 24)), (0.01, range(40, 48)), (0.1, range(64, 65))])
def test_a_long_path_has_a_stream_for_each_part_of_its_round_trip(
    built: tuple[Path, Path], delay: float, streams: range
) -> None:
    link = Link(100e6, delay, 0.0, 0.0)
    with star.up(Shape((link, link), "link", "cubic", LINUX_WINDOW, 70, 0)) as network:
        a, b = network.hosts
        variables = {"NCCL_SOCKET_IFNAME": a.interface, "BAGUA_NET_STREAMS": "auto"}
        with Pair(*built, NEWEST, variables, (a.prefix, b.prefix)) as pair:
            assert _streams_of(pair) in streams


@needs("link")
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("descriptors", "streams"), [(1024, range(330, 385)), (128, range(30, 46))])
def test_a_group_has_as_many_streams_as_its_descriptors_allow(descriptors: int, streams: range) -> None:
    """Three quarters of those that are left, for two connections, each with two sockets that are no streams."""
    link, before = Link(100e6, 0.1, 0.0, 0.0), resource.getrlimit(resource.RLIMIT_NOFILE)
    with star.up(Shape((link, link), "link", "cubic", LINUX_WINDOW, 140, 0)) as network:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
        try:
            with lossy.linked(*network.hosts, "auto") as (pair, _):
                assert len(pair.a.ask("report", name="x.s")["streams"]) in streams
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@needs("link")
@pytest.mark.usefixtures("built")
def test_an_all_reduce_fills_a_long_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip carries 5 MB, slices have 256 KiB: two of them under way would fill a tenth of the line."""
    monkeypatch.setattr(wan, "ROUND_TRIPS", (0.2,))
    monkeypatch.setattr(far, "BYTES", 64 << 20)
    [found] = far.measure(200e6, [0.0], 3)
    assert 0.5 < found.of_line < 1448 / 1500
    assert found.gloo > 0


@needs("link")
@pytest.mark.usefixtures("built")
def test_the_first_operation_of_a_group_that_opens_its_connections_late_knows_how_long_the_path_is() -> None:
    """As many slices are under way as in a group that knew it: 16 of 256 KiB would take 16 round trips for one half."""
    link = Link(1e9, 0.2, 0.0, 0.0)
    shape = Shape((link, link), "link", "cubic", LINUX_WINDOW, 4 * wan.CONNECTIONS, 0)
    times = []
    with star.up(shape) as network:
        for eager in ("8", "0"):
            variables = {"BAGUA_NET_EAGER": eager, "BAGUA_NET_STREAMS": "auto"}
            with torch_bench.ranks("tools.transport.order_rank", network.hosts, 1, variables) as ranks:
                asked = {"ranks": [0, 1], "ring": False, "tree": None, "bytes": 128 << 20, "untimed": 0, "repeat": 1}
                times.append(max(answer["seconds"] for answer in orders.ask(ranks, asked)))
    known, late = times
    assert late < 2.5 * known, "though it connects first"


def _in_use(link: Link, streams: str, seconds: float, until: Callable[[int], bool] = lambda _: False) -> int:
    """How many streams take what is sent, at the latest after so many seconds with 16 messages under way."""
    with star.up(Shape((link, link), "link", "cubic", LINUX_WINDOW, 70, 0)) as network:
        a, b = network.hosts
        with lossy.linked(a, b, streams) as (pair, move):
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and not until(wan.in_use(pair)):
                move(size=2**18, count=100, window=16, patience=60.0)
            return wan.in_use(pair)


@needs("link")
@pytest.mark.usefixtures("built")
def test_the_transport_takes_more_streams_where_packets_are_lost_and_fewer_where_the_line_is_full() -> None:
    """It begins with one for each of the 20 ms of the round trip, and is connected for twice as many."""
    assert _in_use(Link(400e6, 0.01, 0.0, 0.01), "auto", 40.0, lambda streams: streams > 24) > 24
    assert _in_use(Link(20e6, 0.01, 0.0, 0.0), "auto", 40.0, lambda streams: streams < 10) < 10


@needs("link")
@pytest.mark.usefixtures("built")
def test_a_number_of_streams_that_was_asked_for_stays() -> None:
    assert _in_use(Link(20e6, 0.01, 0.0, 0.0), "12", 4.0) == 12


@needs("link")
@pytest.mark.usefixtures("built")
def test_rough_paths_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rough, "ROUND_TRIP", 0.02)
    monkeypatch.setattr(rough, "_SECONDS", 2.0)
    monkeypatch.setattr(rough, "WAYS", ("auto", PLAIN))
    found = {(one.condition, one.way): one for one in rough.measure(50e6, 1)}
    assert len(found) == 8
    assert all(0.05 < one.of_line < 1.1 for one in found.values()), "of the mean rate"
    assert all(one.of_line < 1448 / 1500 for (condition, _), one in found.items() if condition == "steady")


@needs("link")
@pytest.mark.usefixtures("built")
def test_on_a_long_path_with_loss_more_streams_fill_more_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wan, "WAYS", ("4", "auto", PLAIN))
    found = {path.way: path for path in wan.measure([100e6], [0.1], [1e-3], 3)}
    assert found["auto"].rate > found["4"].rate > found[PLAIN].rate
    assert found["auto"].of_line <= 1


@needs("link")
@pytest.mark.usefixtures("built")
def test_a_connection_fills_the_line_and_does_so_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wan, "WAYS", ("auto", PLAIN))
    monkeypatch.setattr(wan, "_AFTER_IDLE", 2**24)
    [found] = wan.later([50e6], [0.02], [0.0], 1)
    assert 0.8 < found.of_line < 1448 / 1500
    assert 2**24 * 8 / 50e6 < found.after_idle < 2 * found.expected


ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.mark.parametrize("control", ALLOWED.read_text().split() if ALLOWED.exists() else [])
def test_streams_have_the_congestion_control_that_is_asked_for(start: Start, control: str) -> None:
    pair = start(environment={"BAGUA_NET_CONGESTION": control})
    pair.link()
    ports = {port for worker in (pair.a, pair.b) for port in worker.ask("state")["ports"]}
    told = subprocess.run(["ss", "-tinH"], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [about.split()[0] for ends, about in itertools.pairwise(told) if _port(ends) in ports]
    assert len(found) == 12, "both ends of four streams, of one for receipts and of one for signs of life"
    assert found.count(control) >= 10, "signs of life may have another"


def _port(line: str) -> int | None:
    return int(line.split()[3].rpartition(":")[2]) if line.startswith("ESTAB") else None


@pytest.mark.usefixtures("built")
def test_a_congestion_control_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGUA_NET_CONGESTION", "psychic")
    with pytest.raises(RuntimeError, match=r"BAGUA_NET_CONGESTION=psychic: allowed here: .*cubic"):
        native.Group(0, 2)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _moody(port: int, closes: int) -> socket.socket:
    """A listener before another one's port, which closes its first callers without a word."""
    front = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            for number in itertools.count():
                caller, _ = front.accept()
                if number < closes:
                    caller.close()
                    continue
                behind = socket.create_connection(("127.0.0.1", port))
                for pair in ((caller, behind), (behind, caller)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return front


@pytest.mark.parametrize("streams", ["4", "auto"])
def test_a_caller_that_is_closed_upon_calls_again(start: Start, streams: str) -> None:
    pair = start(environment={"BAGUA_NET_STREAMS": streams})
    handle = bytes.fromhex(pair.b.ask("listen", name="x.l")["handle"])
    with _moody(Target.of(handle.hex()).port, 3) as front:
        other = handle[:42] + struct.pack("<H", front.getsockname()[1]) + handle[44:]
        pair.b.tell("link", connect={}, accept={"x.r": "x.l"})
        assert pair.a.ask("link", connect={"x.s": other.hex()}, accept={}, poll=0.05)["result"] == 0
        assert pair.b.hear()["result"] == 0
        assert pair.stream(size=2**20, window=4, count=20, check=3)[1]["messages"] > 0


@needs("link")
@pytest.mark.usefixtures("built")
def test_a_foreign_connection_gets_a_part_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wan, "_BEFORE", 3.0)  # it begins with 11, and gives some up on a full line
    monkeypatch.setattr(wan, "_SECONDS_BESIDE", 2.0)
    monkeypatch.setattr(wan, "WAYS", ("4", "auto"))
    found = list(wan.left(20e6, 0.01, 1))
    assert [one.way for one in found] == ["4", "auto"]
    assert all(one.streams in range(4, 11) and one.fair == 1 / (one.streams + 1) for one in found)
    assert found[0].streams == 4
    assert all(0.02 < one.share < 0.6 for one in found), "neither all of it nor nothing"
