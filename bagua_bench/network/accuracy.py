"""Measures how exactly a backend shapes: rates and latencies by the suite's probe, iperf3 and ping."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from bagua_bench.configuration.network_shape import LINUX_WINDOW, Link, Shape
from bagua_bench.network import probe, star
from bagua_bench.network.commands import NetworkError, run
from bagua_bench.network.survey import wire_rate
from bagua_bench.network.topology import Host, tcp_of
from bagua_bench.results import provenance
from bagua_bench.sources.closure import closure_hash

BANDWIDTHS = (100e6, 500e6, 1e9)
LATENCIES = (0.0, 1e-3, 5e-3)
RATE_TOLERANCE = 0.05
_SECONDS = 3  # that iperf3 measures, after one that does not count
_PINGS = 40
_PROBES = 5


def measure(backend: str) -> Iterator[dict[str, Any]]:
    """A record for every combination of BANDWIDTHS and LATENCIES, two servers. NetworkError if one cannot be built."""
    for bandwidth in BANDWIDTHS:
        for latency in LATENCIES:
            link = Link(bandwidth, latency, 0.0, 0.0)
            with star.up(Shape((link, link), backend, "cubic", LINUX_WINDOW, 1, 0)) as network:
                yield _record(network, bandwidth, latency)


def _record(network: star.Network, bandwidth: float, latency: float) -> dict[str, Any]:
    a, b = network.hosts
    rtt = probe.rtt(a, b)
    own = statistics.median(probe.goodput(a, b, rtt) for _ in range(_PROBES))
    goodputs = {"probe": own, "iperf3": iperf3(a.prefix, b.prefix, b.address)}
    rtts = {"probe": rtt, "ping": ping(a, b)}
    rates = {tool: value and wire_rate(value, network.backend.frame) for tool, value in goodputs.items()}
    fits = all(abs(rate - bandwidth) <= RATE_TOLERANCE * bandwidth for rate in rates.values() if rate)
    fits &= all(abs(value - 2 * latency) <= max(0.5e-3, 0.2 * latency) for value in rtts.values() if value)
    return {
        "schema": 1,
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "asked": {"backend": network.shape.backend, "bandwidth": bandwidth, "latency": latency},
        "goodput": goodputs,
        "rate": rates,
        "rtt": rtts,
        "drops": network.backend.drops(),
        "fits": fits,
        "tcp": tcp_of(a),
        "segments": network.shape.segments,
        "commands": network.commands,
        "code": {"sources": closure_hash("bagua_bench.network.accuracy")},
        "machine": provenance.machine(),
    }


def ping(a: Host, b: Host) -> float | None:
    """Median round trip of ping, seconds; None if it is not installed."""
    try:
        printed = run(f"ip netns exec {a.namespace} ping -n -c {_PINGS} -i 0.05 {b.address}")
    except NetworkError:
        return None
    return statistics.median(float(found) for found in re.findall(r"time=([\d.]+) ms", printed)) * 1e-3


def iperf3(sender: Sequence[str], receiver: Sequence[str], address: str) -> float | None:
    """Bits/s of payload that iperf3 moves to `address`; None if it is not installed.

    `sender`, `receiver`: words to put in front of a command so that it runs on that side.
    """
    command = [*receiver, *shlex.split(f"iperf3 -s -1 -B {address}")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            time.sleep(0.5)  # until it listens
            printed = run(f"{shlex.join(sender)} iperf3 -c {address} -t {_SECONDS} -O 1 -J")
        except NetworkError:
            return None
        finally:
            server.kill()
    return float(json.loads(printed)["end"]["sum_received"]["bits_per_second"])
