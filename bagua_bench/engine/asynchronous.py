"""The loop of an algorithm that runs ASYNC: averaging rounds that training never waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from algorithms.base import Comm, Op
from bagua_bench.engine.streams import sides_for

Work = Callable[[], None]


class AveragingLoop:
    """Rounds in lock-step over all ranks, on a thread of its own: snapshot, exchange, apply, pause.

    Two locks keep the weights consistent. `mutate` covers everything that writes or copies them: the optimizer
    step, the snapshot, the application of a round's result. The other covers a rank's forward and backward passes
    (`enter` ... `leave`): results are applied only between them, by whichever thread gets there first. On a GPU the
    locks order the launches into one stream, and that is enough (`streams.StreamSides`).
    The loop ends when all ranks want it to (`stop`); then, and after an error, no thread is left.
    """

    def __init__(
        self, comm: Comm, device: torch.device, pause: float, snapshot: Work, exchange: Work, apply: Work
    ) -> None:
        self.mutate = threading.Lock()
        self._comm, self._device, self._pause = comm, device, pause
        self._snapshot, self._exchange, self._apply = snapshot, exchange, apply
        self._sides = sides_for(device)
        self._turn = threading.Condition()
        self._computing = self._pending = self._abandoned = False
        self._wanted = threading.Event()  # set: this rank wants the loop to end
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # -- the training thread ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the rounds, if they are not running. All ranks call it at the same step."""
        if self._thread is None:
            self._wanted.clear()
            self._thread = threading.Thread(target=self._loop, name="averaging", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Take part in rounds until all ranks have called this; raise the error if the loop failed."""
        self.leave()
        if self._thread is not None:
            self._wanted.set()
            self._thread.join()
            self._thread = None
        self.check()

    def abandon(self) -> None:
        """Begin no further round and do not wait for other ranks: this one has failed."""
        with self._turn:
            self._abandoned = True
            self._turn.notify_all()
        self._wanted.set()

    def enter(self) -> None:
        """A forward pass begins: apply a result that is waiting, then keep the weights as they are until `leave`."""
        self.check()
        with self._turn:
            self._apply_waiting()
            self._computing = True

    def leave(self) -> None:
        """The backward pass is over."""
        with self._turn:
            self._computing = False
            self._turn.notify_all()

    def check(self) -> None:
        """Raise the error if the loop failed."""
        if self._error is not None:
            raise self._error

    # -- the loop's thread ------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._abandoned and not self._all_want_to_stop():
                with self.mutate, self._sides.on_weights():
                    self._snapshot()
                with self._sides.beside():
                    self._exchange()
                self._apply_between_passes()
                self._wanted.wait(self._pause)
        except BaseException as error:
            self._error = error

    def _all_want_to_stop(self) -> bool:
        with self._sides.beside():
            flag = torch.tensor([self._wanted.is_set()], dtype=torch.uint8, device=self._device)
            self._comm.all_reduce(flag, Op.MIN)
            return bool(flag.item())

    def _apply_between_passes(self) -> None:
        with self._turn:
            self._pending = True
            self._turn.wait_for(lambda: not (self._pending and self._computing) or self._abandoned)
            self._apply_waiting()

    def _apply_waiting(self) -> None:
        """Apply the result of the last round, once; the caller holds `_turn`."""
        if self._pending and not self._abandoned:
            with self.mutate, self._sides.on_weights():
                self._apply()
            self._pending = False
            self._turn.notify_all()
