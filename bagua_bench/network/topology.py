"""Servers of an emulated network: their namespaces, addresses and TCP settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bagua_bench.configuration.network_shape import LEAST_TIMEOUT, Shape
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands, run

INTERFACE = "eth0"
"""The network interface of every server."""
_NETWORK = "198.18.0"  # reserved for benchmarks (RFC 2544); every run has its own
_TCP = ("tcp_wmem", "tcp_rmem", "tcp_slow_start_after_idle")


@dataclass(frozen=True)
class Host:
    """One server, as needed to start processes on it. Without a namespace it is this machine itself."""

    namespace: str | None
    address: str
    interface: str

    @property
    def prefix(self) -> list[str]:
        """Words to put in front of a command so that it runs on the server."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


THIS_MACHINE = Host(None, "127.0.0.1", "lo")


def make_hosts(shape: Shape, commands: Commands) -> list[Host]:
    """Make a namespace for each server, with only loopback in it, and set its TCP buffers."""
    hosts = []
    window = shape.tcp_window
    for number in range(len(shape.links)):
        host = Host(namespaces.name(f"s{number}"), f"{_NETWORK}.{number + 1}", INTERFACE)
        commands.run(f"ip netns add {host.namespace}")
        namespaces.name_host(namespaces.name(f"s{number}"), host.address)
        commands.run(f"ip -n {host.namespace} link set lo up")
        for key, least in (("tcp_wmem", 16384), ("tcp_rmem", 131072)):
            value = f"4096 {min(least, window)} {window}"
            commands.run(f"ip netns exec {host.namespace} sysctl -qw net.ipv4.{key}='{value}'")
        hosts.append(host)
    return hosts


def connect(host: Host, shape: Shape, commands: Commands) -> None:
    """Give the server's interface its address and switch it on.

    Congestion control is set on the routes, which may name any that the kernel has. The default of a namespace would
    have to be one that the machine allows every user. So is TCP's least time-out, if it is not the usual one.
    """
    on, device = f"ip -n {host.namespace}", f"dev {INTERFACE}"
    control = f"scope {{}} src {host.address} congctl {shape.congestion}"
    if shape.timeout != LEAST_TIMEOUT:
        control += f" rto_min {math.ceil(shape.timeout * 1000)}ms"
    commands.run(f"{on} address add {host.address}/24 {device}")
    commands.run(f"{on} link set {INTERFACE} up")
    commands.run(f"{on} route change {_NETWORK}.0/24 {device} proto kernel {control.format('link')}")
    commands.run(f"{on} route change local {host.address} {device} table local proto kernel {control.format('host')}")


def tcp_of(host: Host) -> dict[str, str]:
    """The TCP settings of a server, read back from the kernel."""
    values = run(f"ip netns exec {host.namespace} sysctl -n " + " ".join(f"net.ipv4.{key}" for key in _TCP))
    found = {key: " ".join(value.split()) for key, value in zip(_TCP, values.splitlines(), strict=True)}
    routes = run(f"ip -n {host.namespace} route show dev {INTERFACE}")
    control, timeout = (re.search(rf"{key} (?:lock )?(\w+)", routes) for key in ("congctl", "rto_min"))
    return {"congestion": control[1] if control else "", **({"rto_min": timeout[1]} if timeout else {}), **found}
