"""A listener under attack, and honest peers that must not notice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.transport.pair import Pair, Process
from tools.transport.strangers import OTHERS, Fuzzer, Target, join

_BATCH = 50
_POSTED = 4096
_PLAN = {"size": 100_000, "count": 20, "window": 4, "check": 5}


@dataclass
class Siege:
    """Counts of one siege. `lost` jobs and `joined` strangers must be 0, descriptors and threads the same as before."""

    hostile: int = 0
    honest: int = 0
    lost: int = 0
    joined: int = 0
    before: tuple[int, int] = (0, 0)  # descriptors, threads
    after: tuple[int, int] = (0, 0)


def of_handshake(
    library: Path, plugin: Path, symbol: str, count: int, seed: int, environment: Mapping[str, str] | None = None
) -> Siege:
    """`count` hostile connections to a listener, an honest connection with data after every 50."""
    fuzzer, siege = Fuzzer(seed), Siege()
    with Pair(library, plugin, symbol, environment) as pair:
        _honest(pair, "warm", pair.b.ask("listen", name="warm.l")["handle"])
        siege.before = _state(pair.b)
        while siege.hostile < count:
            name = f"h{siege.hostile}"
            handle = pair.b.ask("listen", name=f"{name}.l")["handle"]
            pair.b.tell("link", connect={}, accept={f"{name}.r": f"{name}.l"}, seconds=60)
            target = Target.of(handle)
            fuzzer.record(target)
            for _ in range(min(_BATCH, count - siege.hostile)):
                fuzzer.attack(target)
                siege.hostile += 1
            siege.honest += 1
            siege.lost += not _finish(pair, name, handle)
        for s in fuzzer.held:
            s.close()
        siege.after = _state(pair.b)
    return siege


def _honest(pair: Pair, name: str, handle: str) -> bool:
    pair.b.tell("link", connect={}, accept={f"{name}.r": f"{name}.l"}, seconds=60)
    return _finish(pair, name, handle)


def _finish(pair: Pair, name: str, handle: str) -> bool:
    """Connect to a listener that is accepting, move data, close."""
    linked = pair.a.ask("link", connect={f"{name}.s": handle}, accept={}, seconds=30)
    good: bool = linked["result"] == 0 and pair.b.hear()["result"] == 0
    if good:
        good = all(answer["result"] == 0 for answer in pair.stream(name, strict=False, **_PLAN))
        pair.a.ask("drop", name=f"{name}.s", kind="send")
        pair.b.ask("drop", name=f"{name}.r", kind="receive")
    pair.b.ask("drop", name=f"{name}.l", kind="listener")
    return good


def of_chunks(
    library: Path, plugin: Path, symbol: str, count: int, seed: int, environment: Mapping[str, str] | None = None
) -> Siege:
    """`count` peers that pass the handshake and then send malformed chunks or receipts to a posted receive."""
    fuzzer, siege = Fuzzer(seed), Siege()
    victim = Process(library, {"NCCL_SOCKET_IFNAME": "lo", **(environment or {})})
    try:
        victim.ask("open", path=str(plugin), symbol=symbol)
        siege.before = _state(victim)
        for _ in range(count):
            siege.hostile += 1
            siege.joined += _bad_peer(victim, fuzzer) == 0
        siege.after = _state(victim)
    finally:
        victim.end()
    return siege


def _bad_peer(victim: Process, fuzzer: Fuzzer) -> int:
    """The victim's result of receiving from it: anything but 0 and being out of patience is right."""
    target = Target.of(victim.ask("listen", name="l")["handle"])
    victim.tell("link", connect={}, accept={"r": "l"})
    streams = fuzzer.random.choice((1, 2, 4))
    identity = os.urandom(8)
    sockets = [join(target, index, streams, identity) for index in range(streams + OTHERS)]
    assert victim.hear()["result"] == 0
    victim.tell("stream", name="r", sending=False, size=_POSTED, count=2, window=1, patience=5)
    with contextlib.suppress(OSError):
        if fuzzer.random.random() < 0.2:
            sockets[streams].sendall(fuzzer.bad_receipts())
        else:
            fuzzer.random.choice(sockets[:streams]).sendall(fuzzer.bad_chunk(_POSTED, 0))
    result = int(victim.hear()["result"])
    for s in sockets:
        s.close()
    for name, kind in (("r", "receive"), ("l", "listener")):
        victim.ask("drop", name=name, kind=kind)
    return 0 if result == -1 else result


def _state(process: Process) -> tuple[int, int]:
    """Descriptors and threads."""
    state = process.ask("state")
    return state["fds"], state["threads"]
