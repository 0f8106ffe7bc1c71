"""What a run hands back, real or simulated, before it becomes a record. No torch import."""

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
    """Rounds of an algorithm that averages beside the steps, as applied within the timed ones."""

    rounds: int
    round_seconds: float | None
    """From one to the next, mean; None of fewer than two."""
    staleness_steps: float | None
    """From a snapshot to its application, mean; None of no round."""


@dataclass(frozen=True)
class RankResult:
    """What one rank measured in the timed steps; in a simulation an entry stands for several ranks."""

    seconds: tuple[Mapping[str, float], ...]
    """Of every timed step, by phase, and the whole as `step`."""
    losses: tuple[float, ...]
    """Of the untimed and the timed steps."""
    sent: Mapping[str, float]
    """Bytes, by level: flat, intra, inter."""
    metrics: Mapping[str, float]
    peak_memory: int | None
    """Bytes."""
    streams: Mapping[str, tuple[Mapping[str, float], ...]] | None = None
    """What every stream of `bagua_net` counted, by peer."""
    skipped_steps: int | None = None
    interface: Interface | None = None
    averaging: Averaging | None = None


@dataclass(frozen=True)
class Checks:
    """What must hold after a run for its numbers to count; `reason` where it did not."""

    passed: bool
    reason: str | None
    finite: bool | None = None
    """No NaN or Inf in the weights."""
    replicas: float | str | None = None
    """Distance of a replica from the mean of all, or a word."""


NOT_CHECKED = Checks(passed=True, reason=None, replicas="not compared: nothing is learned")
"""Of a run whose weights mean nothing."""


def with_traffic(
    checks: Checks, ranks: Sequence[RankResult], size: int, averaging: Averaging | None, least: int
) -> Checks:
    """The checks, failed where `size` ranks communicated nothing, or too little to say anything of it.

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
    """What of a run was real and what was not, and the seconds of a step that were emulated."""

    real: tuple[str, ...]
    emulated: tuple[str, ...]
    step_seconds: Mapping[str, float]
    step_seconds_from: str
    physics: Mapping[str, float] | None = None
    """The simulator's parameters."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of a whole run."""

    ranks: tuple[RankResult, ...]
    rank_counts: tuple[float, ...] | None = None
    """How many ranks every entry stands for; None: one each."""
    checks: Checks
    samples_per_step: int
    samples_per_epoch: int
    synthetic: bool
    warmup_steps: int
    parameters: int
    emulation: Reality | None = None
    averaging: Averaging | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = plain.dump(self)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Result:
        """What `to_json` wrote. ValueError, one line, for what is missing, unknown or of the wrong type."""
        return plain.load(cls, given)
