"""The result of a run, real or simulated, before it becomes a record. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bagua_bench.configuration import plain


@dataclass(frozen=True)
class Interface:
    """What the kernel counted for a server's network interface in the timed steps."""

    bytes: int
    retransmits: int


@dataclass(frozen=True)
class Averaging:
    """Rounds of an algorithm that averages alongside the steps, as applied in the timed steps."""

    rounds: int
    round_seconds: float | None
    """Mean time from one round to the next; None with fewer than two."""
    staleness_steps: float | None
    """Mean number of steps from a snapshot to its application; None without a round."""

    def slowed(self, factor: float) -> Averaging:
        """With times so many times as long."""
        return replace(self, round_seconds=None if self.round_seconds is None else self.round_seconds * factor)


@dataclass(frozen=True)
class Sending:
    """How the engine cut the model and sent it, in the configuration's bytes (a scale model's are fewer)."""

    bucket_size: int | None
    """Bytes at which a bucket closed; None where the algorithm decides."""
    buckets: int
    channels: int


Values = Mapping[str, int]
"""A setting of the engine: `bucket_size_2p`, the binary logarithm of bytes (the one nearest to the size that the engine
was made with stands for that size), `channels`, `hierarchical` (0 or 1).

Over Bagua-Net also `streams_2p` and `chunk_2p`, binary logarithms of their number and of bytes.
"""


@dataclass(frozen=True)
class Trial:
    """A setting that was tried, and its score: the higher, the better."""

    values: Values
    score: float


@dataclass(frozen=True)
class Study:
    """What autotuning has tried.

    A score is the model's GiB over the mean seconds from the beginning of a forward pass to the end of the step, on
    the slowest rank.
    """

    trials: tuple[Trial, ...]
    ends: tuple[int, ...]
    """For every trial, how many steps had been taken at its end."""
    order: tuple[str, ...]
    """Names of the parameters in the order in which their gradients became ready."""
    best: Values
    """The setting that was taken in the end."""


@dataclass(frozen=True)
class Life:
    """The steps of an elastic run from one start of its processes to the next."""

    ranks: int
    first: int
    last: int
    """`first` - 1 if no step was taken."""


@dataclass(frozen=True)
class Interruption:
    """What an elastic run survived."""

    event: str
    step: int
    """The last one before it."""
    repeated: int
    """Steps that were taken again, from a checkpoint on."""
    seconds: float
    """Without a step, of rank 0: from the end of the last one to the end of the next."""


@dataclass(frozen=True)
class Elastic:
    """How an elastic run went."""

    lives: tuple[Life, ...]
    interruptions: tuple[Interruption, ...]


TRAINING, AVERAGING = "training", "averaging"
"""Tracks of a trace: the thread that computes, and the one of averaging rounds."""


def channel_track(number: int) -> str:
    """The track of a channel, or of a transport's own lane."""
    return f"channel {number}"


@dataclass(frozen=True)
class Span:
    """Something that a rank does in the timed steps: a step, a phase, the communication of a bucket, a collective."""

    track: str
    name: str
    begin: float
    """Seconds since the timed steps began."""
    seconds: float
    nbytes: float | None = None
    """Of the tensor that a collective was given."""
    level: str | None = None
    """Who takes part in it: flat, intra, inter."""

    def slowed(self, factor: float) -> Span:
        """With times so many times as long."""
        return replace(self, begin=self.begin * factor, seconds=self.seconds * factor)


@dataclass(frozen=True)
class Carried:
    """What the transport has sent to a peer from `begin` on, while a step was taken."""

    peer: str
    begin: float
    """Seconds since the timed steps began."""
    seconds: float
    sent: tuple[float, ...]
    """Bytes, on each stream."""
    again: tuple[float, ...]
    """Segments that were sent once more, on each stream."""

    def slowed(self, factor: float) -> Carried:
        """With times so many times as long."""
        return replace(self, begin=self.begin * factor, seconds=self.seconds * factor)


def in_order(spans: Sequence[Span]) -> tuple[Span, ...]:
    """By the time at which they begin. What contains something ends, and so was noted, later, and goes before it."""
    places = sorted(range(len(spans)), key=lambda place: (spans[place].begin, -spans[place].seconds, -place))
    return tuple(spans[place] for place in places)


@dataclass(frozen=True)
class RankResult:
    """What one rank measured in the timed steps; in a simulation an entry stands for several ranks."""

    seconds: tuple[Mapping[str, float], ...]
    """For every timed step, the seconds of each phase and of the whole, `step`."""
    losses: tuple[float, ...]
    """Losses of the untimed and the timed steps."""
    sent: Mapping[str, float]
    """Bytes sent, by level: flat, intra, inter."""
    metrics: Mapping[str, float]
    peak_memory: int | None
    """Bytes."""
    streams: Mapping[str, tuple[Mapping[str, float], ...]] | None = None
    """Counters of every stream of `bagua_net`, by peer."""
    skipped_steps: int | None = None
    interface: Interface | None = None
    busy: float | None = None
    """Share of the time of its machine's cores that was used, by whatever."""
    averaging: Averaging | None = None
    trains: bool = True
    """Whether it takes batches; False of a rank that only serves others."""
    spans: tuple[Span, ...] = ()
    """What it did when, if that was asked for."""
    carried: tuple[Carried, ...] = ()
    """What `bagua_net` sent meanwhile."""

    def slowed(self, factor: float) -> RankResult:
        """With times so many times as long."""
        averaging = None if self.averaging is None else self.averaging.slowed(factor)
        seconds = tuple(_times(step, factor) for step in self.seconds)
        spans = tuple(span.slowed(factor) for span in self.spans)
        carried = tuple(one.slowed(factor) for one in self.carried)
        return replace(self, seconds=seconds, averaging=averaging, spans=spans, carried=carried)


def _times(seconds: Mapping[str, float], factor: float) -> dict[str, float]:
    return {key: value * factor for key, value in seconds.items()}


@dataclass(frozen=True)
class Checks:
    """What must hold after a run for its numbers to count; `reason` says what did not."""

    passed: bool
    reason: str | None
    finite: bool | None = None
    """No NaN or Inf in the weights."""
    replicas: float | str | None = None
    """Largest distance of a replica from the mean of all, or a verdict in words."""


NOT_CHECKED = Checks(passed=True, reason=None, replicas="not compared: nothing is learned")
"""For a run whose weights mean nothing."""


def with_traffic(
    checks: Checks, ranks: Sequence[RankResult], size: int, averaging: Averaging | None, least: int
) -> Checks:
    """The checks, failed if `size` ranks communicated nothing, or too little to judge the algorithm.

    least: how many averaging rounds the timed steps should have seen.
    """
    if not checks.passed or size == 1:
        return checks
    steps = len(ranks[0].seconds)
    if averaging is not None and averaging.rounds < least:
        reason = (
            f"{averaging.rounds} averaging rounds were applied in {steps} timed steps, and fewer than {least} say "
            "nothing of the algorithm's speed: raise run.steps or the bandwidth"
        )
        return replace(checks, passed=False, reason=reason)
    if not any(sum(rank.sent.values()) for rank in ranks):
        return replace(checks, passed=False, reason=f"nothing was sent in {steps} timed steps")
    return checks


@dataclass(frozen=True)
class Reality:
    """Which parts of a run were real, which were emulated, and the emulated seconds of a step."""

    real: tuple[str, ...]
    emulated: tuple[str, ...]
    step_seconds: Mapping[str, float]
    step_seconds_from: str
    physics: Mapping[str, float] | None = None
    """The simulator's parameters."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a whole run."""

    ranks: tuple[RankResult, ...]
    rank_counts: tuple[float, ...] | None = None
    """How many ranks each entry stands for; None: one each."""
    checks: Checks
    samples_per_step: int
    samples_per_epoch: int
    synthetic: bool
    warmup_steps: int
    parameters: int
    emulation: Reality | None = None
    averaging: Averaging | None = None
    sending: Sending | None = None
    """None for a peer."""
    study: Study | None = None
    """None without autotuning."""
    imbalance: float | None = None
    """The largest over the mean work of the ranks in a step, mean over the timed steps; None: all batches are alike."""
    elastic: Elastic | None = None
    """None of a run that ends with the first rank that is lost."""

    def slowed(self, factor: float) -> Result:
        """The result of the original from that of a scale model which was so many times quicker."""
        if factor == 1:
            return self
        study, emulation = self.study, self.emulation
        if study is not None:
            trials = tuple(replace(trial, score=trial.score / factor) for trial in study.trials)
            study = replace(study, trials=trials)
        if emulation is not None:
            emulation = replace(emulation, step_seconds=_times(emulation.step_seconds, factor))
        return replace(
            self,
            ranks=tuple(rank.slowed(factor) for rank in self.ranks),
            averaging=None if self.averaging is None else self.averaging.slowed(factor),
            study=study,
            emulation=emulation,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = plain.dump(self)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Result:
        """The result that `to_json` wrote. ValueError, one line, for a missing or unknown key or a wrong type."""
        return plain.load(cls, given)
