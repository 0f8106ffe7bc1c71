"""How far a member has come, in steps and in the data, through all the companies that it trains in."""

from __future__ import annotations

from typing import Any

from bagua_bench.comm.torch_groups import gathered
from bagua_bench.elastic.members import Meeting, Members
from tasks.base import Position

_FRUITLESS = 3  # companies in a row that end with an error before a step: the next one would, too


class Course:
    """Steps and data of a member, which its companies agree on.

    total, batch: samples of an epoch, and of a rank's batch. extra: what goes with the steps, such as their
    losses; in a new company all have that of the rank with the most steps.
    """

    def __init__(self, members: Members, total: int, batch: int, extra: Any = None) -> None:
        self._members, self._total, self._batch = members, total, batch
        self.steps, self.position, self.extra = 0, Position(), extra
        self._company = -1
        self._taken = self._failures = 0

    steps: int
    """That count as taken: those of the rank that was ahead when this company began, and this rank's since."""
    position: Position
    """Where in the data this company began."""

    def begin(self, met: Meeting) -> None:
        """Go on where the company before has ended; collective, in a `Company`.

        Its ranks were perhaps not in step: of their epoch nothing is left out. What a lost rank has taken since
        its last sign of life is not known, and comes again.
        """
        if self.steps and self._company == met.number - 1:
            notes = [note if note and note["company"] == self._company else {"taken": 0} for note in met.notes_before]
            self.position = self.position.after_apart([note["taken"] for note in notes], self._total, self._batch)
            self._company, self._taken = met.number, 0  # also if this company comes to nothing
            self._tell()
        own = (self._company, self.steps, self.position, self.extra) if self.steps else None
        if known := [one for one in gathered(own) if one is not None]:
            _, _, self.position, _ = max(known, key=lambda one: one[0])
            _, self.steps, _, self.extra = max(known, key=lambda one: one[1])
        self._company, self._taken = met.number, 0
        self._tell()

    def stepped(self, batches: int = 1) -> None:
        """This rank has taken a step of so many batches. Raises `Changed` if the company is over."""
        self.steps, self._taken, self._failures = self.steps + 1, self._taken + batches * self._batch, 0
        self._tell()
        self._members.check()

    def failed(self, error: BaseException) -> None:
        """A company has ended with an error. Raises it if that is so for the third time without a step."""
        self._failures += 1
        if self._failures >= _FRUITLESS:
            raise error

    def _tell(self) -> None:
        self._members.note = {"company": self._company, "taken": self._taken}
