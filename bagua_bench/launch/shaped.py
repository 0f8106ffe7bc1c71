"""Runs cells on an emulated network, which is measured before and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import shape_of
from bagua_bench.launch.elastic import run_elastic
from bagua_bench.launch.failures import RunFailed
from bagua_bench.launch.local import Watch, Workers, workers
from bagua_bench.network import star, survey, traffic
from bagua_bench.network.commands import NetworkError
from bagua_bench.results.result import Result

_FRESH = 60.0  # seconds for which a survey of the network is good


class Shaped:
    """Processes on the servers of an emulated network.

    `start` starts them, once the network has been measured: while they import what they need, it looks slower.
    """

    def __init__(self, network: star.Network, start: Callable[[], Workers]) -> None:
        self._network, self._start = network, start
        self._workers: Workers | None = None
        self._last: list[survey.Pair] | None = None
        self._when = 0.0

    @property
    def sound(self) -> bool:
        """Whether no process has failed or ended."""
        return self._workers is None or self._workers.sound

    def run(self, cell: Cell, watch: Watch, measured: dict[str, Any]) -> Result:
        """Run a cell. Returns rank 0's result; `measured` receives the network's description.

        The network is measured before and after the first cell, and after each other one unless that was less than a
        minute ago; the last measurement stands before the next cell.
        RunFailed if the network cannot be measured, or for the reasons of `Workers.run`.
        """
        try:
            return self._run(cell, watch, measured)
        except (NetworkError, OSError) as error:
            raise RunFailed(f"network: {error}") from error

    def _run(self, cell: Cell, watch: Watch, measured: dict[str, Any]) -> Result:
        network = self._network
        measured |= survey.describe(network)
        if first := self._last is None:
            self._survey(watch)
        self._note("before", measured)
        drops, passed = network.backend.drops(), network.backend.passed()
        watch({"phase": "starting"})
        result = self._train(cell, watch)
        measured["traffic"] = traffic.compare(result.ranks, cell.cluster.ranks_per_server)
        if cell.run.elastic is None:  # checkpoints are not counted
            measured["flags"] += traffic.flags(measured["traffic"])
        measured["drops"] = network.backend.drops() - drops
        measured["late"] = survey.late(passed, network.backend.passed())
        measured["flags"] += survey.flags_within(measured["drops"], network.shape, measured["late"])
        measured["busy"] = max((rank.busy for rank in result.ranks if rank.busy is not None), default=None)
        if cell.mode == "emulate":
            measured["flags"] += survey.crowded(measured["busy"], cell.haste, network.shape)
        if first or time.monotonic() - self._when > _FRESH:
            self._survey(watch)
            self._note("after", measured)
        return result

    def _train(self, cell: Cell, watch: Watch) -> Result:
        try:
            if cell.run.elastic is not None:  # its processes begin and end with it
                return run_elastic(cell, watch, self._network.hosts)
            if self._workers is None:
                self._workers = self._start()
            return self._workers.run(cell, watch)
        except RunFailed as failure:
            try:
                self._network.backend.drops()
            except NetworkError as error:  # the ranks lost each other because the network ended
                raise RunFailed(f"network: {error}", failure.log) from failure
            raise

    def _survey(self, watch: Watch) -> None:
        watch({"phase": "probing the network"})
        self._last, self._when = survey.survey(self._network), time.monotonic()

    def _note(self, when: str, measured: dict[str, Any]) -> None:
        assert self._last is not None, "surveyed"
        measured[when] = self._last
        measured["flags"] += survey.flags(self._network.shape, self._network.backend.frame, when, self._last)


@contextmanager
def shaped(cell: Cell) -> Iterator[Shaped]:
    """The network that a cell asks for, with processes on its servers; RunFailed if the network cannot be built.

    Nothing is left behind.
    """
    try:
        with star.up(shape_of(cell)) as network, ExitStack() as stack:
            yield Shaped(network, lambda: stack.enter_context(workers(cell.cluster.ranks, network.hosts)))
    except (NetworkError, OSError) as error:
        raise RunFailed(f"network: {error}") from error
