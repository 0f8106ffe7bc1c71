"""The backend `netem`: virtual Ethernet pairs to a bridge, shaped by the kernel's own `tc netem`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bagua_bench.configuration import units
from bagua_bench.configuration.network_shape import MTU, Link, Shape
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands, run
from bagua_bench.network.topology import INTERFACE, Host, connect


class Netem:
    """Outgoing packets are shaped at the server's interface; incoming ones are shaped and delayed at the switch.

    The delay is not on the server, because it would take packets out of their sockets' accounting there. Every site
    has a bridge of its own, whose port to the bridge that joins them is shaped as a server's.
    """

    frame = 14  # bytes of Ethernet around an IP packet

    def __init__(self, shape: Shape, hosts: list[Host], commands: Commands) -> None:
        self._hub = namespaces.name("hub")
        self._devices = [(host.namespace, INTERFACE) for host in hosts]
        self._devices += [(self._hub, f"port{number}") for number in range(len(hosts))]
        commands.run(f"ip netns add {self._hub}")
        for site in range(shape.sites):
            self._bridge(f"switch{site}", commands)
        for number, host in enumerate(hosts):
            ends = f"{INTERFACE} type veth peer name port{number} netns {self._hub}"
            commands.run(f"ip -n {host.namespace} link add {ends}")
            commands.run(f"ip -n {self._hub} link set port{number} master switch{shape.site(number)} up")
            connect(host, shape, commands)
            ends_of = ((host.namespace, INTERFACE), (self._hub, f"port{number}"))
            _shape(shape, shape.links[number], shape.queue(number), ends_of, commands)
        if shape.wan is not None:
            self._bridge("wan", commands)
            for site in range(shape.sites):
                self._join(shape, shape.wan, site, commands)

    def _bridge(self, name: str, commands: Commands) -> None:
        commands.run(f"ip -n {self._hub} link add {name} type bridge")
        commands.run(f"ip -n {self._hub} link set {name} up")

    def _join(self, shape: Shape, wan: Link, site: int, commands: Commands) -> None:
        """Connect a site's bridge to the one that joins the sites."""
        own, far = f"up{site}", f"site{site}"
        commands.run(f"ip -n {self._hub} link add {own} type veth peer name {far}")
        commands.run(f"ip -n {self._hub} link set {own} master switch{site} up")
        commands.run(f"ip -n {self._hub} link set {far} master wan up")
        self._devices += [(self._hub, own), (self._hub, far)]
        _shape(shape, wan, shape.wan_queue(), ((self._hub, own), (self._hub, far)), commands)

    def drops(self) -> int:
        """Number of packets that qdiscs have dropped or lost so far."""
        shown = [run(f"tc -s -j -n {namespace} qdisc show dev {device}") for namespace, device in self._devices]
        return sum(int(qdisc.get("drops", 0)) for text in shown for qdisc in json.loads(text))

    def passed(self) -> None:
        """Nothing, as the kernel passes packets on."""

    def close(self) -> None:
        """Do nothing: interfaces and qdiscs disappear with their namespaces."""


def _shape(shape: Shape, link: Link, queue: int, ends: Sequence[tuple[str | None, str]], commands: Commands) -> None:
    """Shape what leaves by the two ends of a link, the near one and the one at the switch."""
    for (namespace, device), how in zip(ends, qdiscs(link), strict=True):
        if how:
            commands.run(f"tc -n {namespace} qdisc add dev {device} root netem {how} limit {-(-queue // MTU)}")
    for namespace, device in ends:
        commands.run(f"ip -n {namespace} link set {device} gso_max_segs {shape.segments}")


def qdiscs(link: Link) -> tuple[str, str]:
    """Arguments of netem for outgoing and for incoming packets of a server; empty if there is nothing to shape."""
    rate = f"rate {units.text(link.bandwidth, units.BITS_PER_SECOND)}" if link.bandwidth else ""
    delay = f"delay {_time(link.latency)}" if link.latency or link.jitter else ""
    jitter = f"{_time(link.jitter)} distribution normal" if link.jitter else ""
    loss = f"loss {link.loss * 100:.10g}%" if link.loss else ""
    return rate, " ".join(filter(None, (delay, jitter, loss, rate)))


def _time(seconds: float) -> str:
    return units.text(seconds, units.SECONDS)
