"""What the environment says: a wrong value is an error of one line, before anything starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from bagua_bench.transport import native
from tests.catalogue import HOME

_OPEN = "from bagua_bench.transport import native; native.Group(0, 2)"


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
def test_an_interface_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It does not become loopback, over which other machines cannot be reached."""
    monkeypatch.setenv(name, "eht7")
    wanted = rf"{name}=eht7: no such interface is up and has an address; there are: .*\blo\b"
    with pytest.raises(RuntimeError, match=wanted):
        native.Group(0, 2)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("variables", "opens"),
    [({}, True), ({"NCCL_SOCKET_IFNAME": "^docker"}, True), ({"NCCL_SOCKET_IFNAME": "eth"}, False)],
)
def test_without_a_network_loopback_is_used_unless_another_one_is_named(variables: dict[str, str], opens: bool) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces: needs unshare and ip, and the right to make one")
    environment = {**{k: v for k, v in os.environ.items() if k != "NCCL_SOCKET_IFNAME"}, **variables}
    done = subprocess.run(
        [*alone, sys.executable, "-c", _OPEN], cwd=HOME, env=environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) is opens, done.stderr
    if not opens:
        assert "NCCL_SOCKET_IFNAME=eth: no such interface is up" in done.stderr
