"""Emulated networks: what they carry, and that they leave nothing behind. Tests run with each available backend."""

from __future__ import annotations

import itertools
import random
import re
import shlex
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import psutil
import pytest

from bagua_bench.configuration.network_shape import Shape, shape_of
from bagua_bench.network import accuracy, namespaces, probe, star, survey
from bagua_bench.network.commands import PATH, NetworkError, run
from bagua_bench.network.topology import tcp_of
from tests.catalogue import resolved
from tests.emulated import cleared, hold, leftovers, needs
from tests.integration.cli import PATIENCE, wait_for

BACKENDS = [pytest.param(backend, marks=needs(backend)) for backend in ("netem", "link")]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def shape(backend: str, *overrides: str) -> Shape:
    return shape_of(resolved(f"network.backend={backend}", *overrides))


@each_backend
def test_every_pair_gets_the_rate_and_the_round_trip_of_its_links(backend: str) -> None:
    own = 0.0
    if backend == "netem":  # a virtual machine adds latency of its own
        with star.up(shape(backend, "network.bandwidth=100mbit")) as network:
            own = min(probe.rtt(*network.hosts) for _ in range(10))
    asked = shape(backend, "cluster.servers=3", "network.bandwidth=100mbit", "network.latency=5ms",
                  "cluster.server.2.bandwidth=20mbit", "cluster.server.2.latency=1ms")  # fmt: skip
    with star.up(asked) as network:
        assert best_of_probes(network, own) == []
        assert network.backend.drops() == 0


@each_backend
@pytest.mark.parametrize(("timeout", "expected"), [(0.2, 200), (0.8, 800)])
def test_tcp_s_least_time_out_is_as_asked(backend: str, timeout: float, expected: int) -> None:
    """The kernel's own account of a connection: its time-out is the least one, plus the round trip."""
    asked = replace(shape(backend, "network.bandwidth=100mbit", "network.latency=1ms"), timeout=timeout)
    with star.up(asked) as network, probe.connection(*network.hosts) as (near, far):
        near.sendall(b"x")
        far.recv(1)
        found = re.findall(r"\brto:([\d.]+)", run(" ".join([*network.hosts[0].prefix, "ss", "-tin"])))
        assert found and all(expected <= float(one) < expected + 100 for one in found)
        assert tcp_of(network.hosts[0]).get("rto_min") == ("800ms" if expected == 800 else None)


@each_backend
def test_sites_are_as_far_from_each_other_as_asked_and_share_their_lines(backend: str) -> None:
    asked = shape(backend, "cluster.servers=4", "network.bandwidth=200mbit", "network.sites=2",
                  "network.wan.bandwidth=50mbit", "network.wan.latency=10ms")  # fmt: skip
    with star.up(asked) as network:
        assert [asked.rtt(*pair) for pair in ((0, 1), (2, 3), (0, 2), (1, 3))] == [0, 0, 20e-3, 20e-3]
        assert best_of_probes(network, 0.2e-3) == []
        rates, start = [0.0, 0.0], Barrier(2)

        def probed(place: int) -> None:
            start.wait()
            rates[place] = probe.goodput(network.hosts[place], network.hosts[2 + place], 20e-3)

        together = [Thread(target=probed, args=(place,)) for place in range(2)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        assert survey.wire_rate(sum(rates), network.backend.frame) < 1.2 * 50e6, "two servers, one line"
        assert network.backend.drops() == 0


@needs("link")
def test_without_tun_devices_the_emulator_takes_packets_from_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cleared()
    monkeypatch.setattr("bagua_bench.network.link._TUN", "/dev/net/none")
    asked = shape("link", "cluster.servers=3", "network.bandwidth=100mbit", "network.latency=5ms")
    with star.up(asked) as network:
        assert any("type veth" in command for command in network.commands)
        assert best_of_probes(network) == []
        assert network.backend.drops() == 0
    assert leftovers() == before


def best_of_probes(network: star.Network, own: float = 0.0) -> list[str]:
    """Flags of the best of several surveys: a busy machine makes links slower, and nothing makes them faster.

    `own`: the machine's own share of a round trip in seconds, measured without added latency.
    """
    best: dict[tuple[int, int], survey.Pair] = {}
    for _ in range(10):
        for pair in survey.survey(network):
            a, b = key = pair["from"], pair["to"]
            assert pair["rtt"] > 0.95 * network.shape.rtt(a, b), "faster than light"
            known = best.get(key, pair)
            rtt, goodput = min(known["rtt"], pair["rtt"]), max(known["goodput"], pair["goodput"])
            best[key] = {**pair, "rtt": rtt, "goodput": goodput}
        assert set(best) == set(survey.pairs(len(network.hosts)))
        links = [{**pair, "rtt": pair["rtt"] - own} for pair in best.values()]
        flags = list(survey.flags(network.shape, network.backend.frame, "now", links))
        if not flags:
            break
    return flags


@each_backend
def test_independent_tools_see_the_same_network(backend: str) -> None:
    with star.up(shape(backend, "network.bandwidth=100mbit", "network.latency=5ms")) as network:
        a, b = network.hosts
        rates = {"probe": probe.goodput(a, b, 10e-3), "iperf3": accuracy.iperf3(a.prefix, b.prefix, b.address)}
        times = {"probe": probe.rtt(a, b), "ping": accuracy.ping(a, b)}
    for tool, rate in rates.items():
        assert rate is None or 30e6 < rate < 105e6, tool  # None: not installed; a busy machine is slower
    for tool, seconds in times.items():
        assert seconds is None or 9.9e-3 < seconds < 30e-3, tool


@each_backend
def test_a_connection_carries_its_window_per_round_trip(backend: str) -> None:
    windows = []
    for latency in ("2ms", "3ms", "5ms"):
        asked = shape(backend, "network.bandwidth=160mbit", f"network.latency={latency}", "network.tcp_window=40KiB")
        with star.up(asked) as network:
            a, b = network.hosts
            trip = min(probe.rtt(a, b) for _ in range(3))  # a busy machine makes trips longer and rates lower
            windows.append(max(probe.goodput(a, b, trip) for _ in range(8)) * trip)
    assert min(windows) > 0.85 * max(windows)


@needs("link")
@pytest.mark.parametrize("host", ["quiet", "busy"])
def test_single_connections_are_limited_in_turns(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "busy":  # what a probe then does must not take another connection's turn
        monkeypatch.setattr(probe, "_stolen_seconds", itertools.count().__next__)
    with star.up(shape("link", "network.bandwidth=100mbit", "network.flow_rates=[20mbit,5mbit]")) as network:
        rates = [probe.goodput(*network.hosts, 1e-3) for _ in range(4)]
    assert rates == pytest.approx([rate * 1448 / 1500 for rate in (20e6, 5e6, 20e6, 5e6)], rel=0.15)


@needs("link")
def test_an_emulator_that_comes_late_drops_nothing_and_keeps_the_order() -> None:
    with star.up(shape("link", "network.flow_rates=[200mbit]")) as network, ExitStack() as connections:
        a, b = network.hosts
        pairs = [connections.enter_context(probe.connection(a, b)) for _ in range(4)]
        senders = [Thread(target=near.sendall, args=(bytes(8 * 2**20),)) for near, _ in pairs]
        receivers = [Thread(target=far.makefile("rb").read, args=(8 * 2**20,)) for _, far in pairs]
        for thread in (*senders, *receivers):
            thread.start()
        (relay,) = (p for p in psutil.Process().children() if "bagua_bench.network.relay" in p.cmdline())
        while any(thread.is_alive() for thread in receivers):
            relay.suspend()
            time.sleep(0.02)
            relay.resume()
            time.sleep(0.005)
        assert network.backend.drops() == 0
        with namespaces.inside(b.namespace or ""):
            assert counted("TCPOFOQueue") == 0, "segments that came before others sent earlier"


def counted(name: str) -> int:
    """One of TCP's counters of the calling process's network namespace."""
    lines = (line.split() for line in Path("/proc/net/netstat").read_text().splitlines())
    names, values = (words for words in lines if words[0] == "TcpExt:")
    return int(values[names.index(name)])


@each_backend
def test_loss_is_counted_and_slows_tcp_down(backend: str) -> None:
    with star.up(
        shape(backend, "network.bandwidth=100mbit", "network.latency=5ms", "network.loss=2%", "network.congestion=reno")
    ) as network:
        found = survey.survey(network)
        assert network.backend.drops() > 0
    assert all(1e6 < pair["goodput"] < 40e6 for pair in found), "10 Mbit/s by the square root law of TCP"


@each_backend
def test_what_arrives_over_a_lossy_link_is_what_was_sent(backend: str) -> None:
    """Packets that stand for several segments are cut where one of them is lost."""
    sent, got = random.Random(0).randbytes(4 << 20), bytearray()
    asked = shape(backend, "network.bandwidth=400mbit", "network.latency=1ms", "network.loss=1%")
    with star.up(asked) as network, probe.connection(*network.hosts) as (near, far):
        near.settimeout(60.0)
        sending = Thread(target=near.sendall, args=(sent,))
        sending.start()
        while len(got) < len(sent):
            got += far.recv(2**20)
        sending.join()
        assert network.backend.drops() > 0
    assert bytes(got) == sent


@each_backend
def test_congestion_control_and_buffers_are_those_asked_for(backend: str) -> None:
    for control in ("cubic", "reno"):
        asked = ("network=1gbit", f"network.congestion={control}", "network.tcp_window=1MiB")
        with star.up(shape(backend, *asked)) as network:
            tcp = survey.describe(network)["tcp"]
            name = run(f"ip netns exec {network.hosts[1].namespace} {used_by_a_socket(network.hosts[1].address)}")
        assert tcp["congestion"] == name.strip() == control
        assert tcp["tcp_wmem"].split()[2] == tcp["tcp_rmem"].split()[2] == str(2**20)


def used_by_a_socket(address: str) -> str:
    """A command that prints the congestion control of a connection to `address`."""
    code = (
        f"import socket as s; l = s.create_server(({address!r}, 0)); c = s.create_connection(l.getsockname());"
        "print(c.getsockopt(s.IPPROTO_TCP, s.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())"
    )
    return f"python3 -c {shlex.quote(code)}"


@each_backend
def test_nothing_remains_after_the_end_an_error_or_an_interruption(backend: str) -> None:
    before = cleared()
    with star.up(shape(backend, "network=1gbit")):
        assert len(leftovers()["namespaces"]) > len(before["namespaces"])
    assert leftovers() == before
    with pytest.raises(ZeroDivisionError), star.up(shape(backend, "network=1gbit")):
        raise ZeroDivisionError
    assert leftovers() == before
    for interruption in (signal.SIGINT, signal.SIGTERM):
        holder = hold(backend)
        holder.send_signal(interruption)
        holder.wait(PATIENCE)
        if interruption == signal.SIGTERM:  # the front door turns it into SIGINT; a bare process is just ended
            wait_for(lambda: leftovers()["processes"] == before["processes"])  # its emulator ends when it reads of that
            clear(backend)
        assert leftovers() == before


def clear(backend: str) -> None:
    """Clean up, as the next start of any network does."""
    with star.up(shape(backend, "network=1gbit")):
        pass


@each_backend
def test_a_network_that_cannot_be_built_leaves_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cleared()
    monkeypatch.setattr("bagua_bench.network.topology.INTERFACE", "a-name-too-long-for-linux")
    with pytest.raises(NetworkError, match="ip -n bagua-bench-"), star.up(shape(backend, "network=1gbit")):
        pass
    assert leftovers() == before


@each_backend
def test_a_killed_process_is_cleared_up_by_the_next_and_a_living_one_is_not(backend: str) -> None:
    before = cleared()
    killed, living = hold(backend), hold(backend)
    killed.kill()
    killed.wait()
    wait_for(lambda: len(leftovers()["processes"]) - len(before["processes"]) == (backend == "link"))  # its emulator
    assert len(leftovers()["namespaces"]) > len(before["namespaces"])
    clear(backend)
    left = leftovers()["namespaces"]
    assert [name for name in left if f"-{killed.pid}-" in name] == []
    assert [name for name in left if f"-{living.pid}-" in name] != []
    living.send_signal(signal.SIGINT)
    living.wait(PATIENCE)
    assert leftovers() == before


@each_backend
def test_the_commands_can_be_replayed_by_hand(backend: str) -> None:
    with star.up(shape(backend, "cluster.servers=3", "network.bandwidth=50mbit", "network.latency=2ms")) as network:
        commands = [command for command in network.commands if "relay" not in command]
        original = state(network.hosts[1].namespace or "")
    script = "\n".join(["set -e", "mount -t tmpfs tmpfs /run", *commands])
    show = "ip -n bagua-bench-s1 -o address show dev eth0; tc -n bagua-bench-s1 qdisc show dev eth0"
    replayed = subprocess.run(
        ["unshare", "-nm", "sh", "-c", f"{script}\n{show}"], capture_output=True, text=True, env={"PATH": PATH}
    )
    assert replayed.returncode == 0, replayed.stderr
    assert words(replayed.stdout) == words(original)


def state(namespace: str) -> str:
    return run(f"ip -n {namespace} -o address show dev eth0") + run(f"tc -n {namespace} qdisc show dev eth0")


def words(text: str) -> list[str]:
    """The relevant words of a listing: IPv4 addresses and the arguments of qdiscs."""
    lines = [line.split() for line in text.splitlines() if "inet6" not in line]
    return [" ".join(word for word in line if not word.endswith(":")) for line in lines]
