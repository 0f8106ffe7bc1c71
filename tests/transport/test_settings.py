"""What the environment says: a wrong value is an error of one line, before anything starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from bagua_bench.transport import native
from tests.catalogue import HOME

_OPEN = "from bagua_bench.transport import native; native.Group(0, 2)"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("BAGUA_NET_", "NCCL_SOCKET_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("BAGUA_NET_STREAMS", "2.5", "a whole number from 1 to 512, or auto"),
        ("BAGUA_NET_STREAMS", "513", "a whole number from 1 to 512, or auto"),
        ("BAGUA_NET_CHUNK", "1000", "a whole number from 16384 to 67108864"),
        ("BAGUA_NET_CRC", "0.5", "a whole number from 0 to 1"),
        ("BAGUA_NET_EAGER", "-1", "a whole number from 0 to 65536"),
        ("BAGUA_NET_TIMEOUT", "0.2", "a number from 0.5 to 86400"),
        ("BAGUA_NET_TIMEOUT", "10 s", "a number from 0.5 to 86400"),
    ],
)
def test_a_wrong_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=re.escape(f"{name}={value}: allowed: {allowed}") + "$"):
        native.Group(0, 2)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", ["BAGUA_NET_INTERFACES", "NCCL_SOCKET_IFNAME"])
def test_interfaces_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They do not become loopback, over which other machines cannot be reached."""
    monkeypatch.setenv(name, "eht7")
    wanted = rf"{name}=eht7: no such interface is up and has an address; there are: .*\blo\b"
    with pytest.raises(RuntimeError, match=wanted):
        native.Group(0, 2)


@pytest.mark.usefixtures("built")
def test_a_family_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_FAMILY", "ipv6")
    with pytest.raises(RuntimeError, match=r"NCCL_SOCKET_FAMILY=ipv6: allowed: AF_INET, AF_INET6$"):
        native.Group(0, 2)


_LONELY = "ip link set lo up"
_CONNECTED = f"""{_LONELY}; ip link add net0 type veth peer net1; ip address add 10.9.8.7/24 dev net0
ip link set net0 up; ip link set net1 up"""
_NO_SUCH = "no such interface is up and has an address"


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("network", "variables", "error"),
    [
        (_LONELY, {}, ""),
        (_LONELY, {"NCCL_SOCKET_IFNAME": "^docker"}, ""),
        (_LONELY, {"NCCL_SOCKET_IFNAME": "^lo"}, f"NCCL_SOCKET_IFNAME=^lo: {_NO_SUCH}; there are: lo"),
        (_LONELY, {"NCCL_SOCKET_IFNAME": "eth"}, f"NCCL_SOCKET_IFNAME=eth: {_NO_SUCH}; there are: lo"),
        (_CONNECTED, {"NCCL_SOCKET_IFNAME": "=lo"}, ""),
        (_CONNECTED, {"NCCL_SOCKET_IFNAME": "^net"}, f"NCCL_SOCKET_IFNAME=^net: {_NO_SUCH}; there are: lo, net0"),
        (
            _CONNECTED,
            {"NCCL_SOCKET_IFNAME": "net", "NCCL_SOCKET_FAMILY": "AF_INET6"},
            f"NCCL_SOCKET_IFNAME=net: {_NO_SUCH} of NCCL_SOCKET_FAMILY=AF_INET6; there are: ",
        ),
    ],
)
def test_loopback_is_used_without_a_network_or_by_name(network: str, variables: dict[str, str], error: str) -> None:
    apart = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--net", "sh", "-ec"]
    try:
        subprocess.run([*apart, f"{_CONNECTED} 2>&1"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"no network namespace with an interface of its own can be made: {reason}")
    done = subprocess.run(
        [*apart, f'{network}; exec "$@"', "sh", sys.executable, "-c", _OPEN],
        cwd=HOME, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is (not error), done.stderr
    assert error in done.stderr
