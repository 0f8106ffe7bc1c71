"""What is said where a machine cannot emulate networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bagua_bench.network import machine


@pytest.fixture
def having(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that only commands with one of these words work."""

    def pretend(words: str) -> None:
        monkeypatch.setattr(machine, "_works", lambda command: any(word in command for word in words.split()))
        monkeypatch.setattr("shutil.which", lambda tool, path: tool)

    return pretend


def test_auto_takes_netem_where_it_is_and_else_the_emulator(having: Callable[[str], None]) -> None:
    having("true congctl netem tuntap")
    assert machine.choose("auto", "cubic") == "netem"
    assert machine.choose("link", "cubic") == "link"
    having("true congctl tuntap")
    assert machine.choose("auto", "cubic") == "link"


@pytest.mark.parametrize(
    ("words", "backend", "message"),
    [
        ("", "auto", r"^network\.backend=auto: needs root, or namespaces of users.*user\.max_user_namespaces"),
        ("true netem", "auto", r"^network\.congestion=bbr: this kernel does not have it; allowed here: .*cubic"),
        ("true congctl tuntap", "netem", r"^network\.backend=netem: this kernel lacks sch_netem.*allowed: auto, link"),
        ("true congctl netem", "link", r"^network\.backend=link: /dev/net/tun cannot be opened.*modprobe"),
        ("true congctl", "auto", r"^network\.backend=auto: /dev/net/tun cannot be opened.*modprobe"),
    ],
)
def test_what_is_missing_is_named(having: Callable[[str], None], words: str, backend: str, message: str) -> None:
    having(words)
    with pytest.raises(ValueError, match=message):
        machine.choose(backend, "bbr")


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool, path: None if tool == "tc" else tool)
    with pytest.raises(ValueError, match=r"needs tc; Debian's packages: iproute2"):
        machine.choose("auto", "cubic")


def test_an_emulator_that_was_not_built_is_named(
    having: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    having("true congctl tuntap")
    monkeypatch.setattr(machine, "LIBRARY", Path("/nowhere/librelay.so"))
    with pytest.raises(ValueError, match=r"^network\.backend=auto: needs librelay\.so, .* install g\+\+"):
        machine.choose("auto", "cubic")
