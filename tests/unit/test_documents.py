"""The pages about the transport and about networks name what there is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bagua_bench.network.shape import LINK_KEYS
from bagua_bench.network.topology import MOST_SERVERS
from tests.catalogue import HOME

PAGES = {name: (HOME / "docs" / f"{name}.md").read_text() for name in ("transport", "networks")}
CPP = HOME / "bagua_bench/transport/cpp"
COMMANDS = {
    tuple(line.split("#")[0].split()[2:])
    for page in PAGES.values()
    for line in re.findall(r"^python -m .*$|(?<=`)python -m [^`]+(?=`)", page, re.M)
}


def test_files_that_the_pages_name_exist() -> None:
    named = {name for page in PAGES.values() for name in re.findall(r"`([\w./-]+/[\w./-]*)`", page)}
    places = (HOME, HOME / "bagua_bench/transport")
    assert named
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_setting_of_the_transport_is_explained_and_no_other() -> None:
    sources = "".join(path.read_text() for path in CPP.rglob("*.cpp"))
    assert set(re.findall(r'"(BAGUA_NET_\w+)"', sources)) == set(re.findall(r"BAGUA_NET_[A-Z_]+", PAGES["transport"]))


def test_versions_and_limits_are_those_of_the_code() -> None:
    versions = re.findall(r"NetV\d+ ncclNetPlugin_v(\d+) ", (CPP / "nccl/plugin.cpp").read_text())
    assert f"`ncclNetPlugin_v{versions[0]}` to `ncclNetPlugin_v{versions[-1]}`" in PAGES["transport"]
    assert f"joins 2 to {MOST_SERVERS} servers" in PAGES["networks"]
    assert all(f"`network.{key}`" in PAGES["networks"] for key in LINK_KEYS)


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=" ".join)
def test_commands_exist(command: tuple[str, ...]) -> None:
    module, *words = command
    words = [word for word in words if not word.startswith(("-", "["))]
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
