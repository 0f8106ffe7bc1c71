"""NCCL's own loader finds every version of the plugin's table, and what NCCL puts before it works; without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.transport import nccl
from tools.transport.nccl import Nccl
from tools.transport.nccl_sockets import FOUR_SOCKETS
from tools.transport.pair import HarnessError, Pair

VERSIONS = (6, 7, 8, 9, 10, 11, 12)


@pytest.fixture(scope="module")
def library() -> Nccl:
    found = nccl.installed()
    if found is None:
        pytest.skip("NCCL is not here: pip install --no-deps nvidia-nccl-cu12")
    try:
        return nccl.read(found)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("version", VERSIONS)
def test_nccl_finds_and_uses_every_version(
    built: tuple[Path, Path], library: Nccl, stack: ExitStack, version: int
) -> None:
    if version not in library.interfaces:
        pytest.skip(f"NCCL {library.version} knows the interface's versions {library.interfaces}")
    pair = stack.enter_context(Pair(*built, f"ncclNetPlugin_v{version}", nccl=library))
    facts = pair.a.ask("facts")
    assert facts["result"] == 0
    assert (facts["devices"], facts["name"], facts["ptrSupport"], facts["maxRecvs"]) == (1, "lo", 1, 1)
    pair.link()
    pair.stream(size=100_000, count=60, window=8, check=version)  # of random sizes; contents are compared
    pair.link_back()
    pair.pingpong(size=8, count=20)
    streams = pair.a.ask("report_all")["comms"]
    assert sum(one["bytes_sent"] for comm in streams for one in comm) > 0, "the messages went over the plugin"


def test_nccl_s_own_sockets_can_be_the_baseline(built: tuple[Path, Path], library: Nccl, stack: ExitStack) -> None:
    if reason := nccl.lacks_sockets(library):
        pytest.skip(reason)
    pair = stack.enter_context(Pair(*built, nccl.SOCKETS, FOUR_SOCKETS, nccl=library))
    pair.link()
    pair.stream(size=300_000, count=60, window=1, check=1)
    assert pair.a.ask("report_all")["comms"] == [], "the plugin has no part in it"
    assert len(pair.a.ask("state")["ports"]) == 4 + 1


def test_a_plugin_without_a_version_is_not_taken_for_it(
    tmp_path: Path, built: tuple[Path, Path], library: Nccl, stack: ExitStack
) -> None:
    data = built[1].read_bytes()
    other = tmp_path / "libnccl-net-other.so"
    other.write_bytes(data.replace(b"ncclNetPlugin_v8\0", b"ncclNetPlugin_v5\0"))
    with pytest.raises(HarnessError, match="cannot be used through ncclNetPlugin_v8"):
        stack.enter_context(Pair(built[0], other, "ncclNetPlugin_v8", nccl=library))
    stack.enter_context(Pair(built[0], other, "ncclNetPlugin_v9", nccl=library))


def test_a_library_that_is_not_nccl_is_refused(tmp_path: Path, built: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="no loader of network plugins"):
        nccl.read(built[1])
    text = tmp_path / "libnccl.so.2"
    text.write_text("nothing")
    with pytest.raises(ValueError, match=rf"^{text}: .*format"):
        nccl.read(text)
