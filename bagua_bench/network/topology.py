"""Servers of an emulated network: their namespaces, addresses and TCP settings."""

from __future__ import annotations

from dataclasses import dataclass

from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands, run
from bagua_bench.network.shape import Shape

INTERFACE = "eth0"
"""The network interface of every server."""
_NETWORK = "198.18.0"  # set apart for benchmarks (RFC 2544); every run has it to itself
MOST_SERVERS = 200
_TCP = ("tcp_congestion_control", "tcp_wmem", "tcp_rmem", "tcp_slow_start_after_idle")


@dataclass(frozen=True)
class Host:
    """One server, as those see it who start processes on it; no namespace is this machine itself."""

    namespace: str | None
    address: str
    interface: str

    @property
    def prefix(self) -> list[str]:
        """What goes before a command so that it runs on the server."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


THIS_MACHINE = Host(None, "127.0.0.1", "lo")


def make_hosts(shape: Shape, commands: Commands) -> list[Host]:
    """Namespaces for all servers, with nothing but loopback and the TCP settings, which a namespace has of its own."""
    hosts = []
    for number in range(len(shape.links)):
        host = Host(namespaces.name(f"s{number}"), f"{_NETWORK}.{number + 1}", INTERFACE)
        commands.run(f"ip netns add {host.namespace}")
        commands.run(f"ip -n {host.namespace} link set lo up")
        hosts.append(host)
        _set_tcp(host, shape, commands)
    return hosts


def _set_tcp(host: Host, shape: Shape, commands: Commands) -> None:
    window = shape.tcp_window
    settings = {
        "tcp_congestion_control": shape.congestion,
        "tcp_wmem": f"4096 {min(16384, window)} {window}",
        "tcp_rmem": f"4096 {min(131072, window)} {window}",
    }
    for key, value in settings.items():
        commands.run(f"ip netns exec {host.namespace} sysctl -qw net.ipv4.{key}='{value}'")


def tcp_of(host: Host) -> dict[str, str]:
    """The TCP settings of a server, read back from the kernel."""
    keys = " ".join(f"net.ipv4.{key}" for key in _TCP)
    values = run(f"ip netns exec {host.namespace} sysctl -n {keys}").splitlines()
    return {key: " ".join(value.split()) for key, value in zip(_TCP, values, strict=True)}
