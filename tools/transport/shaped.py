"""Two network namespaces joined by a veth pair, with a rate limit per flow (HTB class and filter on the source port).

Only what the harness needs; emulated clusters are `bagua_bench.network`'s.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CONGESTION = "reno"
_FAST = "40gbit"
_NOBODY = "02:00:00:00:00:00"


@dataclass
class Site:
    """One side of the pair."""

    namespace: str
    interface: str
    address: str

    def run(self, *command: str) -> str:
        """Run a command inside; CalledProcessError with its message if it fails."""
        return _run("ip", "netns", "exec", self.namespace, *command)

    @property
    def prefix(self) -> list[str]:
        """Words to put in front of a command so that it runs inside."""
        return ["ip", "netns", "exec", self.namespace]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def unavailable() -> str | None:
    """Why namespaces cannot be made here, or None."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with pair(probe=True):
            return None
    except (subprocess.CalledProcessError, OSError) as error:
        return f"no network namespaces: {getattr(error, 'stderr', error)}"


@contextmanager
def pair(links: int = 1, probe: bool = False) -> Iterator[tuple[Site, Site]]:
    """Two sites joined by `links` veth pairs (bb0, bb1, ...); they are deleted on leaving."""
    tag = f"bb{os.getpid()}{'p' if probe else ''}"
    sites = (Site(f"{tag}a", "bb0", "10.97.0.1"), Site(f"{tag}b", "bb0", "10.97.0.2"))
    try:
        for site in sites:
            _run("ip", "netns", "add", site.namespace)
            site.run("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONGESTION}")
            site.run("ip", "link", "set", "lo", "up")
        for k in range(links):
            a, b = (site.namespace for site in sites)
            _run("ip", "-n", a, "link", "add", f"bb{k}", "type", "veth", "peer", "name", f"bb{k}", "netns", b)
            for number, site in enumerate(sites, 1):
                site.run("ip", "address", "add", f"10.97.{k}.{number}/24", "dev", f"bb{k}")
                site.run("ip", "link", "set", f"bb{k}", "up")
        await_carrier(sites, links)
        yield sites
    finally:
        for site in sites:
            if Path("/run/netns", site.namespace).exists():
                _run("ip", "netns", "delete", site.namespace)


@contextmanager
def star(count: int) -> Iterator[tuple[Site, list[Site]]]:
    """A router and so many sites around it; they are deleted on leaving. Packets from one to another pass the router,
    whose link bbK leads to site K."""
    tag = f"bb{os.getpid()}s"
    router = Site(f"{tag}r", "", "")
    sites = [Site(f"{tag}{k}", "bb0", f"10.97.{k}.2") for k in range(count)]
    try:
        for site in (router, *sites):
            _run("ip", "netns", "add", site.namespace)
            site.run("ip", "link", "set", "lo", "up")
        router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for k, site in enumerate(sites):
            ends = ("bb0", "type", "veth", "peer", "name", f"bb{k}", "netns", router.namespace)
            _run("ip", "-n", site.namespace, "link", "add", *ends)
            for where, link, own in ((site, "bb0", site.address), (router, f"bb{k}", f"10.97.{k}.1")):
                where.run("ip", "address", "add", f"{own}/24", "dev", link)
                where.run("ip", "link", "set", link, "up")
            site.run("ip", "route", "add", "default", "via", f"10.97.{k}.1")
            site.run("sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONGESTION}")
        await_carrier(sites)
        yield router, sites
    finally:
        for site in (router, *sites):
            if Path("/run/netns", site.namespace).exists():
                _run("ip", "netns", "delete", site.namespace)


def limit_towards(site: Site, rates: dict[str, float]) -> None:
    """Limit what a site sends to each of these addresses, bit/s; what goes elsewhere is not limited."""
    lines = [
        f"qdisc add dev {site.interface} root handle 1: htb default 1",
        f"class add dev {site.interface} parent 1: classid 1:1 htb rate {_FAST} burst 4m cburst 4m",
    ]
    for number, (address, rate) in enumerate(rates.items(), 2):
        limit = f"rate {rate:.0f}bit burst 64k cburst 64k"
        lines += [
            f"class add dev {site.interface} parent 1: classid 1:{number:x} htb {limit}",
            f"filter add dev {site.interface} parent 1: protocol ip u32 match ip dst {address}/32 flowid 1:{number:x}",
        ]
    command = [*site.prefix, "tc", "-batch", "-"]
    subprocess.run(command, check=True, input="\n".join(lines), text=True, capture_output=True)


def await_carrier(sites: Sequence[Site], links: int = 1) -> None:
    """Wait for the links: the kernel reports a new one only a moment after it is up."""
    end = time.monotonic() + 5
    for site in sites:
        while site.run("ip", "-o", "link", "show", "up").count("state UP") < links and time.monotonic() < end:
            time.sleep(0.02)


@contextmanager
def swallowed(*senders: Site, among: Sequence[Site]) -> Iterator[None]:
    """Meanwhile everything that these sites send over their first link is lost without a word, as on a cut cable.

    Their packets go to a hardware address that nobody has, which takes neither a kernel module nor a link's state.
    """
    others = [next(site for site in among if site is not sender) for sender in senders]
    real = [json.loads(other.run("ip", "-j", "link", "show", other.interface))[0]["address"] for other in others]

    def send_to(addresses: Sequence[str]) -> None:
        for sender, other, address in zip(senders, others, addresses, strict=True):
            where = ("dev", sender.interface, "lladdr", address, "nud", "permanent")
            _run("ip", "-n", sender.namespace, "neighbour", "replace", other.address, *where)

    send_to([_NOBODY] * len(senders))
    try:
        yield
    finally:
        send_to(real)


def limit_flows(site: Site, rates: dict[int, float], others: float | None = None, interface: str = "bb0") -> None:
    """Limit outgoing flows by source port (port -> bit/s), and all others together (None: not at all)."""
    tc = ["tc", "-batch", "-"]
    rest = f"{others:.0f}bit" if others else _FAST
    burst = "burst 256k cburst 256k" if others else "burst 4m cburst 4m"
    lines = [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb rate {rest} {burst}",
    ]
    for number, (port, rate) in enumerate(rates.items(), 2):
        lines += [
            f"class add dev {interface} parent 1: classid 1:{number:x} htb rate {rate:.0f}bit burst 256k cburst 256k",
            f"filter add dev {interface} parent 1: protocol ip u32 match ip sport {port} 0xffff flowid 1:{number:x}",
        ]
    delete = [*site.prefix, "tc", "qdisc", "delete", "dev", interface, "root"]
    subprocess.run(delete, check=False, capture_output=True)  # there may be none
    subprocess.run([*site.prefix, *tc], check=True, input="\n".join(lines), text=True, capture_output=True)


@contextmanager
def changing(site: Site, flows: Sequence[Sequence[float]], every: float, interface: str = "bb0") -> Iterator[None]:
    """Meanwhile flow k of `limit_flows` takes the limits of `flows[k]` (bit/s) in turn, each for `every` seconds.

    RuntimeError if tc refused one of them.
    """
    command = [*site.prefix, "tc", "-batch", "-"]
    over = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as tc:
        lines = tc.stdin
        assert lines is not None

        def change(step: int) -> None:
            for number, limits in enumerate(flows, 2):
                rate = f"rate {limits[step % len(limits)]:.0f}bit burst 256k cburst 256k"
                lines.write(f"class change dev {interface} parent 1: classid 1:{number:x} htb {rate}\n")
            lines.flush()

        def run() -> None:
            step, due = 0, time.monotonic()
            with suppress(BrokenPipeError):  # tc has ended, and its code says so
                while not over.wait(max(0.0, due - time.monotonic())):
                    change(step)
                    step, due = step + 1, due + every

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
    if tc.returncode:
        raise RuntimeError(f"tc refused to change a limit (code {tc.returncode}): what was measured is void")


def limit_connections(site: Site, rate: float) -> None:
    """Limit each TCP connection that leaves the site now to `rate` bit/s."""
    listing = site.run("ss", "-Htn", "state", "established").split("\n")
    ends = [tuple(end.rpartition(":")[2] for end in line.split()[2:4]) for line in listing if "10.97." in line]
    lines = [
        f"qdisc add dev {site.interface} root handle 1: htb default 1",
        f"class add dev {site.interface} parent 1: classid 1:1 htb rate {_FAST} burst 4m cburst 4m",
    ]
    for number, (own, theirs) in enumerate(ends, 2):
        lines += [
            f"class add dev {site.interface} parent 1: classid 1:{number:x} htb rate {rate:.0f}bit"
            " burst 256k cburst 256k",
            f"filter add dev {site.interface} parent 1: protocol ip u32 match ip sport {own} 0xffff"
            f" match ip dport {theirs} 0xffff flowid 1:{number:x}",
        ]
    command = [*site.prefix, "tc", "-batch", "-"]
    subprocess.run(command, check=True, input="\n".join(lines), text=True, capture_output=True)


def payload_rate(rates: Sequence[float]) -> float:
    """Bytes/s of payload that flows of these bit/s carry: 1448 of the 1514 bytes that HTB charges for a packet."""
    return sum(rates) / 8 * 1448 / 1514
