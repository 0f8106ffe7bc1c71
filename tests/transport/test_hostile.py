"""Faults and strangers, a few of each; `python -m tools.transport soak` runs the many."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.transport.conftest import NEWEST, Start
from tools.transport import faults, shaped, siege


@pytest.mark.parametrize("helpers", ["0", "1"])
def test_every_fault_ends_in_whole_data_or_an_error_in_time(built: tuple[Path, Path], helpers: str) -> None:
    links = shaped.unavailable() is None
    count = len(faults.KINDS) if links else len(faults.KINDS) - 1
    found = list(faults.run(*built, NEWEST, count, 1, links, {"BAGUA_NET_HELPERS": helpers}))
    assert [fault for fault in found if not fault.good] == []


def test_a_peer_that_computes_for_long_is_not_taken_for_dead(start: Start) -> None:
    pair = start(environment={"BAGUA_NET_TIMEOUT": "2"})
    pair.link()
    plan = {"size": 8 * 2**20, "count": 4, "window": 4}
    pair.a.tell("stream", name="x.s", sending=True, **plan)
    pair.b.ask("rest", seconds=5)  # longer than the time-out and another second, in which TCP tries again
    assert pair.b.ask("stream", name="x.r", sending=False, **plan)["result"] == 0
    assert pair.a.hear()["result"] == 0


def test_strangers_neither_join_nor_disturb(built: tuple[Path, Path]) -> None:
    found = siege.of_handshake(*built, NEWEST, 600, 1)
    assert (found.hostile, found.honest, found.lost) == (600, 12, 0)
    assert found.before == found.after


def test_malformed_chunks_are_an_error_and_nothing_else(built: tuple[Path, Path]) -> None:
    found = siege.of_chunks(*built, NEWEST, 150, 1)
    assert (found.hostile, found.joined) == (150, 0)
    assert found.before == found.after


def test_a_second_claim_to_a_stream_is_refused(start: Start) -> None:
    from tools.transport.strangers import Target, join, receive

    pair = start()
    target = Target.of(pair.b.ask("listen", name="l")["handle"])
    pair.b.tell("link", connect={}, accept={"r": "l"})
    identity = bytes(range(8))
    with join(target, 0, 1, identity) as first:
        assert receive(first, 8)
        with join(target, 0, 1, identity) as second:
            assert second.recv(8) == b""
        with join(target, 1, 1, identity) as receipts, join(target, 2, 1, identity) as pulse:
            assert receive(receipts, 8)
            assert receive(pulse, 8)
            assert pair.b.hear()["result"] == 0


def test_headers_of_nothing_are_skipped(start: Start) -> None:
    from tools.transport.strangers import Target, chunk, join

    nothing, size = chunk(0, 0, 0, 0, nothing=1), 100_000
    pair = start()
    target = Target.of(pair.b.ask("listen", name="l")["handle"])
    pair.b.tell("link", connect={}, accept={"r": "l"})
    sockets = [join(target, index, 1, bytes(range(8))) for index in range(3)]
    assert pair.b.hear()["result"] == 0
    sockets[0].sendall(nothing)
    pair.b.tell("stream", name="r", sending=False, size=size, count=2, window=1, patience=10)
    half = size // 2
    for message in range(2):
        for offset in (0, half):
            sockets[0].sendall(nothing + chunk(message, offset, half, size) + bytes(half) + 2 * nothing)
    assert pair.b.hear()["result"] == 0
    for s in sockets:
        s.close()


@pytest.mark.parametrize("receipt", ["too early", "missing", "and good-bye"])
def test_a_lent_message_is_over_when_its_receipt_says_so(start: Start, receipt: str) -> None:
    from tools.transport.strangers import MAGIC, Target, join, receive

    pair = start(environment={"BAGUA_NET_STREAMS": "1", "BAGUA_NET_TIMEOUT": "60"})  # no sign of life comes from here
    target = Target.of(pair.a.ask("listen", name="l")["handle"])
    pair.a.tell("link", connect={}, accept={"x": "l"})
    stream, receipts, _ = sockets = [join(target, index, 1, bytes(range(8))) for index in range(3)]
    assert [receive(s, 8) for s in sockets] == [struct.pack("<Q", MAGIC)] * 3
    assert pair.a.hear()["result"] == 0
    size, last, patience = 16 * 2**20, 10, 4 if receipt == "missing" else 60
    pair.a.tell("stream", name="x", sending=True, size=size, count=20, window=1, patience=patience)
    for message in range(last + 1):
        left = size
        while left > 0:
            number, _, length, total, _, _, asked = struct.unpack_from("<7I", receive(stream, 64))
            assert (number, total) == (message, size)
            if asked and receipt == "too early":
                break  # the kernel cannot have taken all of it
            receive(stream, length)
            left -= length
        if asked and not (message == last and receipt == "missing"):
            receipts.sendall(struct.pack("<4I", 0, 1, message, 0))  # one of nothing, which is skipped
        if left > 0:
            break
    assert asked, "the way is short, and known to be"
    if receipt == "and good-bye":
        for s in sockets:
            s.close()
    outcome = pair.a.hear()
    assert outcome["result"] == {"too early": 6, "missing": -1, "and good-bye": 6}[receipt]
    if receipt != "too early":
        finished = last + (receipt == "and good-bye")
        assert outcome["messages"] == finished - 2, "the first tenth of the messages is not counted"
    for s in sockets:
        s.close()
