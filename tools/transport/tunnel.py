"""The transport through WireGuard: two sites joined by tunnels, and what encryption costs there (docs/encryption.md).

`wg-quick` makes the tunnels, in the kernel or, where that has no WireGuard, with wireguard-go.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bagua_bench import libraries
from tools.transport import compiled, shaped
from tools.transport.bench import Sample, sample
from tools.transport.pair import GROUP, Pair

PORT = 51820
MOST = 3  # tunnels: as many interfaces as a listener waits on
PLAIN, ENCRYPTED, SEVERAL = "plain", "one tunnel", f"{MOST} tunnels"
_USER = "wireguard-go"
_KINDS: dict[str, Any] = {"unlimited": {}, "200 Mbit/s": {"link": 200e6}, "50 Mbit/s per flow": {"flow": 50e6}}
_STREAMS = 4
_MESSAGES = ((2**20, 4), (2**24, 2))  # size, window
_SECONDS = 2.0  # that a transfer should take
_UNLIMITED = {PLAIN: 2e9, ENCRYPTED: 100e6, SEVERAL: 100e6}  # bytes/s, where nothing limits it
_TIMES = 2000  # half round trips
_ENDS = 5.0  # seconds that the process behind a tunnel may take to end


@dataclass(frozen=True)
class Cost:
    """Medians over the rounds of one way to send over one network; cpu: the machine's, also of the kernel's threads."""

    network: str
    way: str
    size: int
    window: int
    rate: float = 0.0  # bytes/s
    cpu_per_gb: float = 0.0
    half_round_trip: float = 0.0  # seconds


def unavailable() -> str | None:
    """Why tunnels cannot be made here, or None."""
    missing = [tool for tool in ("wg", "wg-quick") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (wireguard-tools)"
    if reason := shaped.unavailable():
        return reason
    if not in_kernel() and shutil.which(_USER) is None:
        return f"this kernel has no WireGuard, and {_USER} is not installed"
    if not in_kernel() and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return f"{_USER} needs /dev/net/tun"
    return None


@cache
def in_kernel() -> bool:
    """Whether the kernel has WireGuard: it can make an interface of that kind."""
    with shaped.pair(probe=True) as (site, _):
        made = [*site.prefix, "ip", "link", "add", prefix(), "type", "wireguard"]
        return subprocess.run(made, check=False, capture_output=True).returncode == 0


def configuration(private: str, address: str, public: str, other: str, outside: str, port: int = PORT) -> str:
    """What wg-quick reads on one server.

    private: its key. address, other: its own and the other's address in the tunnel. public, outside: the other's key,
    and the address at which the other can be reached without the tunnel.
    """
    return f"""[Interface]
PrivateKey = {private}
Address = {address}/24
ListenPort = {port}

[Peer]
PublicKey = {public}
AllowedIPs = {other}/32
Endpoint = {outside}:{port}
"""


@contextmanager
def up(sites: tuple[shaped.Site, shaped.Site], number: int = 0) -> Iterator[tuple[shaped.Site, shaped.Site]]:
    """Join two sites by tunnel `number` as well; yield them with its interface and addresses. It ends on leaving."""
    with tempfile.TemporaryDirectory(prefix="bagua-bench-wg-") as folder, ExitStack() as ends:
        inner = tuple(
            replace(site, interface=f"{prefix()}{number}{side}", address=f"10.98.{number}.{k}")
            for k, (site, side) in enumerate(zip(sites, "ab", strict=True), 1)
        )
        keys = [_keys() for _ in sites]
        for k in (0, 1):
            own, other = inner[k], inner[1 - k]
            file = Path(folder, f"{own.interface}.conf")
            file.touch(mode=0o600)
            file.write_text(
                configuration(
                    keys[k][0], own.address, keys[1 - k][1], other.address, sites[1 - k].address, PORT + number
                )
            )
            ends.callback(_down, own, file)
            _quick(own, "up", file)
        yield inner[0], inner[1]


def prefix() -> str:
    """That the names of all tunnels' interfaces begin with."""
    return f"wg{os.getpid()}"


def _keys() -> tuple[str, str]:
    private = subprocess.run(["wg", "genkey"], check=True, capture_output=True, text=True).stdout
    public = subprocess.run(["wg", "pubkey"], check=True, capture_output=True, text=True, input=private).stdout
    return private.strip(), public.strip()


def _quick(site: shaped.Site, what: str, file: Path) -> None:
    """Run wg-quick. RuntimeError if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "LOG_LEVEL"}  # wireguard-go would say more
    command = [*site.prefix, "wg-quick", what, str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    if done.returncode:
        raise RuntimeError(f"wg-quick {what}: {done.stderr.strip()}")


def _down(site: shaped.Site, file: Path) -> None:
    """End a tunnel, as far as there is one, and wait for the process behind it."""
    with suppress(RuntimeError):  # there is none if it could not be made
        _quick(site, "down", file)
    socket, end = Path(f"/var/run/wireguard/{site.interface}.sock"), time.monotonic() + _ENDS
    while socket.exists() and time.monotonic() < end:
        time.sleep(0.02)


def measure(rounds: int) -> Iterator[Cost]:
    """Every network with every way to send, in turn; one result per network, way and size of messages."""
    for network, limits in _KINDS.items():
        found: list[tuple[str, Sample]] = []
        for number in range(rounds):
            for way, tunnels in ((PLAIN, 0), (ENCRYPTED, 1), (SEVERAL, MOST)):
                found += [(way, one) for one in _one(way, tunnels, number, **limits)]
        for way, size, window in dict.fromkeys((way, one.size, one.window) for way, one in found):
            own = [asdict(one) for kind, one in found if (kind, one.size, one.window) == (way, size, window)]
            values = {key: median(one[key] for one in own) for key in ("rate", "cpu_per_gb", "half_round_trip")}
            yield Cost(network, way, size, window, **values)


def _one(way: str, tunnels: int, number: int, link: float | None = None, flow: float | None = None) -> Iterator[Sample]:
    """Messages of each size, then half round trips where nothing is limited; limits in bit/s."""
    plain, expected = not tunnels, (link or (tunnels or _STREAMS) * (flow or 0.0)) / 8 or _UNLIMITED[way]
    with shaped.pair() as sites, ExitStack() as ends:
        for k in range(tunnels):
            ends.enter_context(up(sites, k))
        names = {"NCCL_SOCKET_IFNAME": sites[0].interface if plain else prefix(), "BAGUA_NET_STREAMS": str(_STREAMS)}
        prefixes = (sites[0].prefix, sites[1].prefix)
        with Pair(compiled.harness(), libraries.plugin(), GROUP, names, prefixes) as pair:
            pair.link()
            if plain and flow:
                shaped.limit_connections(sites[0], flow)
            elif link or flow:
                shaped.limit_flows(sites[0], {PORT + k: flow for k in range(tunnels)} if flow else {}, link)
            for size, window in _MESSAGES:
                count, before = max(20, int(expected * _SECONDS / size)), _busy()
                both = pair.stream(size=size, window=window, count=count)
                spent = (_busy() - before) / (size * count) * 1e9
                yield replace(sample("group", size, window, number, both), cpu_per_gb=spent)
            if not (link or flow):
                first, _ = pair.pingpong(size=8, count=_TIMES, idle=0)
                yield Sample("group", 8, 1, number, half_round_trip=first["median"])


def _busy() -> float:
    """CPU seconds of this machine so far that were not idle."""
    times = psutil.cpu_times()
    return float(sum(times[:7]) - times.idle - times.iowait)  # what guests used is in user and nice already


def table(costs: Sequence[Cost]) -> Iterator[list[str]]:
    """Rows of text: network, way, messages; rate or half round trip, and the same over the plain way's; CPU time."""
    plain = {(one.network, one.size): one for one in costs if one.way == PLAIN}
    for one in costs:
        base, what = plain[one.network, one.size], [one.network, one.way, f"{one.size / 2**20:g} MiB x {one.window}"]
        if one.half_round_trip:
            ratio = one.half_round_trip / base.half_round_trip
            yield [*what[:2], "8 bytes", f"{one.half_round_trip * 1e6:.0f} us", f"{ratio:.2f}", ""]
        else:
            yield [*what, f"{one.rate / 1e6:.1f} MB/s", f"{one.rate / base.rate:.3f}", f"{one.cpu_per_gb:.2f}"]
