"""The backend `netem`: virtual Ethernet pairs to a bridge, shaped by the kernel's own `tc netem`."""

from __future__ import annotations

import json

from bagua_bench.configuration import units
from bagua_bench.configuration.network_shape import MTU, Link, Shape
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands, run
from bagua_bench.network.topology import INTERFACE, Host, connect


class Netem:
    """Outgoing packets are shaped at the server's interface; incoming ones are shaped and delayed at the switch.

    The delay is not on the server, because it would take packets out of their sockets' accounting there.
    """

    frame = 14  # bytes of Ethernet around an IP packet

    def __init__(self, shape: Shape, hosts: list[Host], commands: Commands) -> None:
        self._hub = namespaces.name("hub")
        self._devices = [(host.namespace, INTERFACE) for host in hosts]
        self._devices += [(self._hub, f"port{number}") for number in range(len(hosts))]
        commands.run(f"ip netns add {self._hub}")
        commands.run(f"ip -n {self._hub} link add switch type bridge")
        commands.run(f"ip -n {self._hub} link set switch up")
        for number, host in enumerate(hosts):
            ends = f"{INTERFACE} type veth peer name port{number} netns {self._hub}"
            commands.run(f"ip -n {host.namespace} link add {ends}")
            commands.run(f"ip -n {self._hub} link set port{number} master switch up")
            connect(host, shape, commands)
            for command in self._shape(shape, host, number):
                commands.run(command)

    def _shape(self, shape: Shape, host: Host, number: int) -> list[str]:
        limit = f"limit {-(-shape.queue(number) // MTU)}"
        sent, received = qdiscs(shape.links[number])
        ends = ((host.namespace, INTERFACE, sent), (self._hub, f"port{number}", received))
        commands = [f"tc -n {ns} qdisc add dev {device} root netem {how} {limit}" for ns, device, how in ends if how]
        return commands + [f"ip -n {ns} link set {device} gso_max_segs {shape.segments}" for ns, device, _ in ends]

    def drops(self) -> int:
        """Number of packets that qdiscs have dropped or lost so far."""
        shown = [run(f"tc -s -j -n {namespace} qdisc show dev {device}") for namespace, device in self._devices]
        return sum(int(qdisc.get("drops", 0)) for text in shown for qdisc in json.loads(text))

    def close(self) -> None:
        """Do nothing: interfaces and qdiscs disappear with their namespaces."""


def qdiscs(link: Link) -> tuple[str, str]:
    """Arguments of netem for outgoing and for incoming packets of a server; empty if there is nothing to shape."""
    rate = f"rate {units.text(link.bandwidth, units.BITS_PER_SECOND)}" if link.bandwidth else ""
    delay = f"delay {_time(link.latency)}" if link.latency or link.jitter else ""
    jitter = f"{_time(link.jitter)} distribution normal" if link.jitter else ""
    loss = f"loss {link.loss * 100:.10g}%" if link.loss else ""
    return rate, " ".join(filter(None, (delay, jitter, loss, rate)))


def _time(seconds: float) -> str:
    return units.text(seconds, units.SECONDS)
