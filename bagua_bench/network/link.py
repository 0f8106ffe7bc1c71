"""The backend `link`: a device per server, and a process that passes packets between them when they are due.

The devices are TUN. Users who may not open those get virtual Ethernet pairs to a hub, where packets are taken and sent.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bagua_bench.configuration.network_shape import MTU, Shape
from bagua_bench.network import namespaces
from bagua_bench.network.commands import Commands, NetworkError
from bagua_bench.network.topology import INTERFACE, Host, connect

_HOME = Path(__file__).resolve().parents[2]
_TUN = "/dev/net/tun"
_ADDRESS = "02:00:00:00:00:01"
_GRACE = 5.0  # seconds for the emulator to end


class LinkEmulator:
    """The devices, and the process that holds them (`bagua_bench.network.relay`); it ends with this one."""

    frame = 0  # bytes around an IP packet that a link's rate counts

    def __init__(self, shape: Shape, hosts: list[Host], commands: Commands) -> None:
        make = _make_tun if _may_open(_TUN) else _make_pair
        if make is _make_pair:
            commands.run(f"ip netns add {namespaces.name('hub')}")
        devices = []
        for number, host in enumerate(hosts):
            devices.append(make(host, number, shape, commands))
            connect(host, shape, commands)
        command = [sys.executable, "-m", "bagua_bench.network.relay", _describe(shape, devices)]
        commands.note(f"tail -f /dev/null | {shlex.join(['python', *command[1:]])}")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(_HOME), "PYTHONSAFEPATH": "1"},
        )
        self._line()

    def drops(self) -> int:
        """Number of packets so far that found a full queue or were lost; NetworkError if the emulator has ended."""
        counters = self._counters()
        return counters["drops"] + counters["lost"]

    def passed(self) -> tuple[int, int]:
        """How many packets it has passed on so far, and how many of them over 1 ms late; NetworkError as `drops`."""
        counters = self._counters()
        return counters["passed"], counters["late"]

    def _counters(self) -> dict[str, int]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_line` says so
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        counters: dict[str, int] = json.loads(self._line())
        return counters

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NetworkError(f"the link emulator ended with exit code {self._process.wait()}")
        return line

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _may_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


Device = dict[str, str | bool | None]


def _make_tun(host: Host, number: int, shape: Shape, commands: Commands) -> Device:
    on = f"ip -n {host.namespace}"
    commands.run(f"{on} tuntap add dev {INTERFACE} mode tun vnet_hdr")
    commands.run(f"{on} link set {INTERFACE} mtu {MTU} txqueuelen 10000 gso_max_segs {shape.segments}")
    return {"namespace": host.namespace, "device": INTERFACE, "tun": True}


def _make_pair(host: Host, number: int, shape: Shape, commands: Commands) -> Device:
    """All servers have the same hardware address, so that no server needs to ask for another's."""
    hub, port = namespaces.name("hub"), f"port{number}"
    commands.run(f"ip -n {host.namespace} link add {INTERFACE} type veth peer name {port} netns {hub}")
    settings = f"mtu {MTU} address {_ADDRESS} arp off gso_max_segs {shape.segments}"
    commands.run(f"ip -n {host.namespace} link set {INTERFACE} {settings}")
    commands.run(f"ip -n {hub} link set {port} up")
    return {"namespace": hub, "device": port, "tun": False}


def _describe(shape: Shape, devices: list[Device]) -> str:
    servers = [
        {**device, "queue": shape.queue(number), "link": asdict(shape.links[number])}
        for number, device in enumerate(devices)
    ]
    wan = None if shape.wan is None else {"sites": shape.sites, "queue": shape.wan_queue(), "link": asdict(shape.wan)}
    of_all = {key: getattr(shape, key) for key in ("seed", "flow_rates", "flow_delays", "swing")}
    return json.dumps({**of_all, "servers": servers, "wan": wan})
