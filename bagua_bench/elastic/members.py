"""Who takes part in training that goes on without a restart: signs of life and meetings, in a store."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch.distributed.distributed_c10d import Store

_POLL = 0.1  # seconds between two looks of a member that waits in a meeting
_FORGET = 15  # times its patience after which nobody looks for a lost one any more
_ALL, _OVER = "members", "over"  # keys of the store: everybody's names, in the order of coming; the end of training


class Changed(RuntimeError):
    """Training goes on with other ranks: one of them was lost, or somebody waits to come in."""


@dataclass(frozen=True)
class Member:
    """Who took part, with what it told last (`Members.note`)."""

    name: str
    note: Any


@dataclass(frozen=True)
class Meeting:
    """What the members of a meeting decided; all of them hold the same."""

    number: int
    present: tuple[Member, ...]
    """Who goes on, in the order of ranks: those who have been there longest come first."""
    before: tuple[Member, ...]
    """The company before, in the order of its ranks, with those who were lost; empty for the first one."""
    rank: int
    """This member's, among those who go on."""

    @property
    def size(self) -> int:
        """How many go on."""
        return len(self.present)

    @property
    def notes_before(self) -> list[Any]:
        """Of the company before, in the order of its ranks."""
        return [member.note for member in self.before]


class Members:
    """One member of a group whose other members come and go; from construction to `close()` it gives signs of life.

    store: of torch.distributed, on a machine that stays; none of the members may keep it. It has to be able to `clone`,
    as a TCPStore does: a thread of its own gives and looks for signs of life, whatever this one waits for.
    beat: seconds between two signs. patience: seconds without one after which a member is lost.
    """

    def __init__(self, store: Store, beat: float = 0.5, patience: float = 4.0) -> None:
        self.store = cast(Any, store)  # its stubs do not know all its calls
        self.name, self.note = uuid.uuid4().hex, None
        self._pulse = _Pulse(self, self.store.clone(), beat, patience)
        self._pulse.give_sign()
        self.store.append(_ALL, f"{self.name} ")
        self._pulse.look()
        self._next = 0
        self._pulse.start()

    note: Any
    """JSON that goes with every sign of life: what the others should know if this member is lost."""

    def meet(self, least: int = 1, wait_for: int = 1, seconds: float = 10.0) -> Meeting | None:
        """Wait until all who are alive have come; None if training is over.

        least: fewer do not go on. wait_for: how many the first meeting waits for, so many `seconds` at most.
        ConnectionError if the store is gone.
        """
        self._pulse.watch((), None)
        begun = time.monotonic()
        while True:
            came = time.monotonic()
            if self._decided(self._next) is None:
                self._pulse.give_sign()  # before the call, so that whoever hears it sees that this one is alive
                self.store.set(f"{self._next}/{self.name}", json.dumps(self.note))
                self.store.set(f"{self._next}/called", "")
            while (decided := self._decided(self._next)) is None:
                if self.store.check([_OVER]):
                    return None
                self._pulse.check()
                if self._pulse.looked > came:
                    waits = self._next == 0 and time.monotonic() - begun < seconds
                    self._propose(max(least, wait_for) if waits else least)
                time.sleep(_POLL)
            number, self._next = self._next, self._next + 1
            present, before = (tuple(Member(*one) for one in decided[key]) for key in ("present", "before"))
            names = [one.name for one in present]
            if self.name in names:
                self._pulse.watch(names, self._next)
                return Meeting(number, present, before, names.index(self.name))

    def check(self) -> None:
        """Raise `Changed` if this company is over. Costs nothing: the thread has looked."""
        self._pulse.check()

    def finish(self) -> None:
        """Tell everybody, and who still comes, that training is over."""
        self.store.set(_OVER, "")

    def close(self) -> None:
        """Give no more signs of life."""
        self._pulse.stop()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _decided(self, number: int) -> dict[str, list[list[Any]]] | None:
        key = f"{number}/decided"
        if number < 0 or not self.store.check([key]):
            return None
        decided: dict[str, list[list[Any]]] = json.loads(self.store.get(key))
        return decided

    def _propose(self, least: int) -> None:
        """Decide, if nobody else has, who goes on: those who are here, if all are here who are alive."""
        alive = self._pulse.alive()
        if len(alive) < least or not all(self.store.check([f"{self._next}/{name}"]) for name in alive):
            return
        present = {name: json.loads(self.store.get(f"{self._next}/{name}")) for name in alive}
        last = self._decided(self._next - 1) or {"present": []}
        before = {name: present[name] if name in present else self._pulse.last(name) for name, _ in last["present"]}
        decided = {"present": [*present.items()], "before": [*before.items()]}
        self.store.compare_set(f"{self._next}/decided", "", json.dumps(decided))


class _Pulse:
    """A thread that gives signs of life and looks for those of others."""

    def __init__(self, owner: Members, store: Store, beat: float, patience: float) -> None:
        self._owner, self._store, self._beat, self._patience = owner, store, beat, patience
        self._count = 0
        self._seen: dict[str, tuple[bytes, float]] = {}  # the last sign of each, and when it was seen first
        self._alive: list[str] = []  # at the last look
        self.looked = 0.0  # when that began
        self._forgotten: set[str] = set()
        self._watched: Sequence[str] = ()
        self._next: int | None = None  # the meeting that ends this company, if somebody comes to it
        self._changed: Changed | None = None
        self._broken: ConnectionError | None = None
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(self._patience)

    def give_sign(self) -> None:
        self._count += 1
        self._store.set(f"alive/{self._owner.name}", json.dumps([self._count, self._owner.note]))

    def look(self) -> None:
        """See who is there, who has been lost, and whether somebody has called the next meeting."""
        begun = time.monotonic()
        names = [name for name in self._store.get(_ALL).decode().split() if name not in self._forgotten]
        signs = self._store.multi_get([f"alive/{name}" for name in names])
        now = time.monotonic()
        for name, sign in zip(names, signs, strict=True):
            if name not in self._seen or self._seen[name][0] != sign:
                self._seen[name] = (sign, now)
        quiet = {name: now - self._seen[name][1] for name in names if name != self._owner.name}
        self._forgotten.update(name for name, seconds in quiet.items() if seconds > _FORGET * self._patience)
        with self._lock:
            self._alive = [name for name in names if quiet.get(name, 0.0) <= self._patience]
            following, gone = self._next, [name for name in self._watched if name not in self._alive]
            ranks, self.looked = len(self._watched), begun
        if following is None:
            return
        if gone:
            self._end(following, f"{len(gone)} of {ranks} ranks gave no sign of life for {self._patience:g} s")
        elif self._store.check([f"{following}/called"]):
            self._end(following, "ranks have left this company, or wait to come in")

    def watch(self, names: Sequence[str], following: int | None) -> None:
        """The company to look after, and the meeting that ends it; None: this member is in a meeting."""
        with self._lock:
            self._watched, self._next, self._changed = names, following, None

    def alive(self) -> list[str]:
        """Names in the order of coming."""
        with self._lock:
            return list(self._alive)

    def last(self, name: str) -> Any:
        """The note that came with the last sign of life."""
        return json.loads(self._store.get(f"alive/{name}"))[1]

    def check(self) -> None:
        for failure in (self._broken, self._changed):
            if failure is not None:
                raise failure

    def _end(self, following: int, reason: str) -> None:
        with self._lock:
            if self._next == following:
                self._changed = Changed(reason)

    def _run(self) -> None:
        while not self._stopped.wait(self._beat):
            try:
                self.give_sign()
                self.look()
            except Exception as error:
                if not self._stopped.is_set():
                    self._broken = ConnectionError(f"the store of the members is gone: {error}".splitlines()[0])
                return
