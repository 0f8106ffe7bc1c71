"""Where the runs of a session take place: processes, and the emulated network around them."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from bagua_bench.advise.proposals import proposed
from bagua_bench.campaign.plan import Place, place
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import is_shaped
from bagua_bench.launch import crew, joined
from bagua_bench.launch.elastic import run_elastic
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch, workers
from bagua_bench.launch.shaped import Shaped, shaped
from bagua_bench.machine.scale import scale_model
from bagua_bench.results.result import Result


class Stage:
    """Runs cells one after another.

    Emulated cells in a row on the same network share it and its processes: building both takes longer than most of
    their runs. Where computing is real, every run has fresh processes, so that none finds the memory or the caches
    that another left; so do the runs behind one of a system that a process can run only once.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._shared: tuple[Place, Shaped] | None = None

    def run(self, cell: Cell, watch: Watch, measured: dict[str, Any]) -> Result:
        """Run a cell, and return its result.

        `measured` receives the measurements of an emulated network. RunFailed if the run fails, or its network cannot
        be built.
        """
        if cell.mode == "simulate":
            from bagua_bench.simulate.run import simulate

            try:
                return simulate(cell)
            except ValueError as error:  # an option or a model that only its own code can judge
                raise RunFailed(str(error)) from error
        where, cell = place(cell), scale_model(proposed(cell))
        if joined.is_joined():
            return crew.lead(cell, watch)
        if not is_shaped(cell):
            self._end()
            if cell.run.elastic is not None:
                return run_elastic(cell, watch)
            with workers(cell.cluster.ranks) as processes:
                return processes.run(cell, watch)
        try:
            result = self._network(where, cell).run(cell, watch, measured)
        except BaseException as error:
            self._end(error)
            raise
        if cell.mode == "measure" or facts.once_per_process(cell.algo):
            self._end()
        return result

    def _network(self, where: Place, cell: Cell) -> Shaped:
        """Processes on the cell's network: those of the run before if they fit and are sound, else new ones."""
        if self._shared is None or self._shared[0] != where or not self._shared[1].sound:
            self._end()
            self._shared = where, self._open.enter_context(shaped(cell))
        return self._shared[1]

    def _end(self, error: BaseException | None = None) -> None:
        """End what is kept, because of an error or because it is of no further use."""
        kept, self._open, self._shared = self._open, ExitStack(), None
        kept.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end(error)
