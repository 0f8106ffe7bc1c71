"""Finds out what this machine offers for emulated networks; puts users who are not root into their own namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, cast

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import is_shaped
from bagua_bench.network.commands import PATH, NetworkError, run
from bagua_bench.network.relay import LIBRARY, NOT_BUILT

_NET_ADMIN, _SYS_ADMIN = 12, 21  # linux/capability.h
_TRIALS = {
    "netem": "ip link add type bridge && ip link add type veth && tc qdisc add dev lo root netem delay 1ms",
    "link": "ip tuntap add dev tun0 mode tun vnet_hdr || ip link add type veth",
}
_MISSING = {
    "netem": "this kernel lacks sch_netem, veth or bridge (modprobe -a sch_netem veth bridge); allowed: auto, link",
    "link": "/dev/net/tun cannot be opened and this kernel lacks veth (allow one: modprobe -a tun veth)",
}
_TOOLS = ("ip", "tc", "sysctl", "unshare")
_PACKAGES = "Debian's packages: iproute2, procps, util-linux"
_PREPARE = "mount -t tmpfs tmpfs /run && ip link set lo up"
_NO_NAMESPACES = (
    "needs root, or namespaces of users, which this machine does not allow (allow them: "
    "sysctl -w user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 or "
    "kernel.apparmor_restrict_unprivileged_userns=0, whichever it has)"
)


def settle(cell: Cell) -> Cell:
    """The cell with the backend that this machine has instead of `auto`.

    ValueError if it cannot emulate the network of the cell: one line on what is missing and how to get it.
    """
    network = cell.network
    if not is_shaped(cell):
        return cell
    asked = "link" if network.flow_rates and network.backend == "auto" else network.backend
    return replace(cell, network=replace(network, backend=choose(asked, network.congestion)))


def choose(backend: str, congestion: str) -> Literal["netem", "link"]:
    """The backend to use if `backend`, perhaps auto, is asked for. ValueError as from `settle`."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        raise ValueError(f"network.backend={backend}: needs {', '.join(missing)}; {_PACKAGES}")
    if not _works("true"):
        raise ValueError(f"network.backend={backend}: {_NO_NAMESPACES}")
    if not _works(f"ip route add 198.18.0.0/24 dev lo congctl {congestion}"):
        raise ValueError(f"network.congestion={congestion}: this kernel does not have it; {_congestion()}")
    allowed = list(_TRIALS) if backend == "auto" else [backend]
    chosen = next((one for one in allowed if _works(_TRIALS[one])), None)
    if chosen is None:
        raise ValueError(f"network.backend={backend}: {_MISSING[allowed[-1]]}")
    if chosen == "link" and not LIBRARY.exists():
        raise ValueError(f"network.backend={backend}: {NOT_BUILT}")
    return cast(Literal["netem", "link"], chosen)


def enter() -> None:
    """Get the right to build networks: without it, this program starts again in namespaces of its own."""
    if not is_privileged():
        command = ["unshare", "-Urnm", "sh", "-c", f'{_PREPARE} && exec "$@"', "sh", sys.executable, *sys.orig_argv[1:]]
        os.execvpe(command[0], command, {**os.environ, "PATH": PATH})


def is_privileged() -> bool:
    """Whether this process may make named namespaces, as root of the machine or of its own user namespace."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    effective = int(status["CapEff"], 16)
    return bool(effective >> _NET_ADMIN & effective >> _SYS_ADMIN & 1) and os.access("/run", os.W_OK)


@cache
def _works(command: str) -> bool:
    """Whether a command works in fresh namespaces."""
    try:
        run(f"unshare {'-nm' if is_privileged() else '-Urnm'} sh -c {shlex.quote(f'{_PREPARE} && ({command})')}")
    except NetworkError:
        return False
    return True


def congestion_controls() -> list[str]:
    """Names of TCP's congestion controls that the kernel has loaded, sorted; none if it does not say."""
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return sorted(path.read_text().split()) if path.exists() else []


def _congestion() -> str:
    return f"allowed here: {', '.join(congestion_controls())}"
