"""Tunes buckets, channels, hierarchy and transport of an engine while it trains (docs/design.md, Autotuning)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import torch

from algorithms.base import Algorithm, Bucket, Op, When
from bagua_bench.comm import CountedComm
from bagua_bench.engine.buckets import by_size
from bagua_bench.engine.plan import Plan
from bagua_bench.engine.search import Search, require
from bagua_bench.engine.stopwatch import seconds_between, stamp
from bagua_bench.results.result import Study, Values

SMALLEST, LARGEST = 10, 31
"""Binary logarithms of the bucket sizes to try, bytes; sizes beyond the model's are all alike and are left out."""
MOST_CHANNELS = 4
HOPELESS = 3
"""A setting is given up if its first step takes so many times as long as the longest one of the best setting."""
_GIB = 2**30
_LATE = 10**9  # a step behind every warm-up


@dataclass(frozen=True)
class Autotune:
    """How to tune: `max_samples` settings, each for `sample_steps` steps behind one that is not counted.

    If the one that is not counted is hopelessly slow, its setting gets no further steps.

    sample_steps: of an algorithm that communicates every k-th step, a multiple of k.
    warmup_steps: steps before the first sample; more than an algorithm's own warm-up.
    first: settings to try first, keyed as `Study.trials`, best first, each once; where there are none, what the engine
    was made with. A value that is missing is the engine's (of an empty one all are); one that cannot be had, the
    nearest that can.
    scale: how many times smaller the model is than the one that sizes are said of (a scale model).
    ValueError, one line, for a number below 1.
    """

    max_samples: int = 30
    sample_steps: int = 5
    warmup_steps: int = 5
    seed: int = 0
    first: Sequence[Values] = ()
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_samples", "sample_steps", "warmup_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


class Tunable(Protocol):
    """What a tuner needs of an engine."""

    comm: CountedComm
    algorithm: Algorithm
    buckets: list[Bucket]
    plan: Plan

    def rebuild(self) -> None:
        """Make the buckets anew."""


class Tuner:
    """Goes through the samples of one engine, whose hooks call it; all ranks change at the same step.

    names: those of all parameters. together: does something collective behind all that is under way.
    ValueError, one line, where nothing can be tuned; ModuleNotFoundError without Optuna.
    """

    def __init__(
        self,
        engine: Tunable,
        asked: Autotune,
        names: Iterable[str],
        together: Callable[[Callable[[CountedComm], None]], None],
    ) -> None:
        require()
        self._engine, self._asked, self._together = engine, asked, together
        self._device, self._names = engine.buckets[0].weight.device, sorted(names)
        self._chosen = engine.algorithm.partition([p for bucket in engine.buckets for p in bucket.params]) is not None
        model_bytes = sum(p.nbytes for bucket in engine.buckets for p in bucket.params)
        self._gibibytes = model_bytes * asked.scale / _GIB
        self.space = _space(engine.algorithm, engine.comm, model_bytes * asked.scale)
        if not self.space:
            raise ValueError(
                f"autotune: {type(engine.algorithm).__name__} has nothing to tune on {engine.comm.size} ranks"
            )
        self._own_size = engine.plan.bucket_size
        present = self._possible(self._present())
        self._own_power = present.get("bucket_size_2p")
        self._search: Search | None = None
        if not engine.comm.rank:
            first = [present | self._possible(values) for values in asked.first] or [present]
            once = [values for number, values in enumerate(first) if values not in first[:number]]
            self._search = Search(self.space, asked.seed, once, self._alike)
        self._ready: dict[str, None] = {}
        self._began: Any = None  # the last forward, or the end of the step before: a compiled model tells of no forward
        self._spans: list[tuple[Any, Any]] = []
        self._ends: list[int] = []
        self._steps = 0
        self._due = asked.warmup_steps
        self._first = False  # the step that is due is the first one of its setting
        self._best, self._limit = math.inf, math.inf  # seconds: a step of the best setting, and what is hopeless
        self._order: list[str] = []
        self.done = False
        """Whether the best setting is in use for good."""

    @property
    def study(self) -> Study:
        """What has been tried so far; the trials are on rank 0."""
        trials = self._search.trials if self._search is not None else []
        best = self._search.best.values if self._search is not None and trials else {}
        return Study(tuple(trials), tuple(self._ends), tuple(self._order), best)

    def ready(self, name: str) -> None:
        """A gradient is ready."""
        if not self._order:
            self._ready[name] = None

    def step_begins(self) -> None:
        """A training forward begins."""
        if not self.done:
            self._began = stamp(self._device)

    def step_ends(self) -> None:
        """Between two steps. Collective where a sample ends."""
        if self.done:
            return
        if self._began is not None:
            self._spans.append((self._began, stamp(self._device)))
        self._steps += 1
        if self._steps == self._due:
            self._next()
        self._began = stamp(self._device)

    def _next(self) -> None:
        """End the warm-up or a sample; take the next setting, or the best."""
        if not self._order:
            self._order = self._agreed_order()
            self._engine.plan.order = self._order
        else:
            took = [seconds_between(*span, self._device) for span in self._spans]
            self._spans.clear()
            mean, longest = self._slowest(fmean(took), max(took))
            if self._first and mean <= self._limit:
                self._first, self._due = False, self._steps + self._asked.sample_steps
                return
            if mean < self._best and not self._first:
                self._best, self._limit = mean, HOPELESS * longest
            self._ends.append(self._steps)
            if self._search is not None:
                self._search.tell(self._gibibytes / mean)
        self._spans.clear()
        self.done = len(self._ends) == self._asked.max_samples
        self._take(self._agreed())
        self._first, self._due = True, self._steps + 1

    def _take(self, values: Values) -> None:
        plan, algorithm = self._engine.plan, self._engine.algorithm
        size = self._size(values["bucket_size_2p"]) if "bucket_size_2p" in values else None
        plan.change(size, values.get("channels"), {key: values[key] for key in self._engine.comm.choices})
        if "hierarchical" in values:
            algorithm.hierarchical = bool(values["hierarchical"])  # type: ignore[attr-defined]
        self._engine.rebuild()

    def _size(self, power: int) -> int:
        """Bytes of a bucket of the engine. The power nearest to the size that it was made with stands for that size."""
        if self._own_size is not None and power == self._own_power:
            return self._own_size
        return math.ceil((1 << power) / self._asked.scale)

    def _alike(self, values: Values) -> Hashable:
        """What a setting comes to: where the model is cut, and the channels that have something to send."""
        if "bucket_size_2p" not in values:
            return tuple(values.items())
        buckets = [bucket.params for bucket in self._engine.buckets]
        if not self._chosen:
            buckets = by_size([p for params in buckets for p in params], self._size(values["bucket_size_2p"]))
        cut = [len(params) for params in buckets]
        others = {**values, "bucket_size_2p": 0, "channels": min(values["channels"], len(cut))}
        return (*cut, *others.items())

    def _present(self) -> Values:
        """The setting that the engine was made with."""
        return {
            "bucket_size_2p": round(math.log2(max(1, (self._own_size or 0) * self._asked.scale))),
            "channels": self._engine.plan.number,
            "hierarchical": int(getattr(self._engine.algorithm, "hierarchical", False)),
            **self._engine.comm.settings,
        }

    def _possible(self, values: Values) -> dict[str, int]:
        """What of the values can be chosen, within its bounds."""
        known = [(name, allowed) for name, allowed in self.space.items() if name in values]
        return {name: min(max(values[name], allowed[0]), allowed[-1]) for name, allowed in known}

    def _agreed(self) -> Values:
        """Rank 0's next setting, or its best one, on all ranks."""
        chosen = torch.zeros(len(self.space), dtype=torch.int64, device=self._device)
        if self._search is not None:
            values = self._search.best.values if self.done else self._search.ask()
            chosen.copy_(torch.tensor([values[name] for name in self.space]))
        self._together(lambda comm: comm.broadcast(chosen, 0))
        return dict(zip(self.space, chosen.tolist(), strict=True))

    def _agreed_order(self) -> list[str]:
        """Rank 0's order, on all ranks; without parameters that had no gradient there."""
        own = {name: place for place, name in enumerate(self._ready)}
        places = torch.tensor([own.get(name, -1) for name in self._names], device=self._device)
        self._together(lambda comm: comm.broadcast(places, 0))
        found = zip(places.tolist(), self._names, strict=True)
        return [name for place, name in sorted(found) if place >= 0]

    def _slowest(self, *seconds: float) -> list[float]:
        """Of each of these times, the slowest rank's."""
        found = torch.tensor(seconds, device=self._device)
        self._together(lambda comm: comm.all_reduce(found, Op.MAX))
        return [float(value) for value in found]


def _space(algorithm: Algorithm, comm: CountedComm, nbytes: float) -> dict[str, range]:
    """What can be tuned, and to which values."""
    space: dict[str, range] = {}
    if comm.size == 1 or any(turn.when is When.ASYNC for turn in algorithm.turns(_LATE)):
        return space
    if not algorithm.one_bucket:
        largest = min(LARGEST, max(SMALLEST + 1, math.ceil(math.log2(nbytes))))
        space = {"bucket_size_2p": range(SMALLEST, largest + 1), "channels": range(1, MOST_CHANNELS + 1)}
    inside = comm.intra.size if comm.intra is not None else 1
    if hasattr(algorithm, "hierarchical") and 1 < inside < comm.size:
        space["hierarchical"] = range(2)
    return {**space, **comm.choices}
