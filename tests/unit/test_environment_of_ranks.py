"""Variables that Bagua-Net reads: what ranks get of them, and what records say."""

from __future__ import annotations

import pytest

from bagua_bench.launch import servers
from bagua_bench.network.topology import Host
from bagua_bench.results import provenance


@pytest.mark.parametrize(("namespace", "passed"), [(None, "bbr"), ("somewhere", None)])
def test_an_emulated_network_has_its_own_congestion_control(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, passed: str | None
) -> None:
    monkeypatch.setenv("BAGUA_NET_CONGESTION", "bbr")
    given = servers.environment(Host(namespace, "10.0.0.1", "lo"), 2)
    assert given.get("BAGUA_NET_CONGESTION") == passed


def test_records_name_settings_but_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGUA_NET_CONGESTION", "bbr")
    monkeypatch.setenv("BAGUA_NET_ORDER", "measured")
    monkeypatch.setenv("BAGUA_NET_SECRET_FILE", "/somebody/s/secret")
    found = provenance.environment()
    assert {key: value for key, value in found.items() if key.startswith("BAGUA_NET_")} == {
        "BAGUA_NET_CONGESTION": "bbr",
        "BAGUA_NET_ORDER": "measured",
    }
