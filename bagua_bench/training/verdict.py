"""Verdicts on a run that need no tensors. No torch import."""

from __future__ import annotations

from typing import Any

NOT_CHECKED: dict[str, Any] = {"passed": True, "reason": None, "replicas": "not compared: nothing is learned"}
"""The checks of a run whose weights mean nothing."""


def with_traffic(checks: dict[str, Any], rounds: int | None, least: int, sent: float, steps: int) -> dict[str, Any]:
    """The checks, failed where nothing was communicated, or too little to say anything of it.

    rounds: averaging rounds that were applied, None where there are none; sent: bytes of all ranks, of which there are
    several; both in so many timed `steps`.
    """
    if not checks["passed"]:
        return checks
    reason = None
    if rounds is not None and rounds < least:
        reason = (
            f"{rounds} averaging rounds were applied in {steps} timed steps, and fewer than {least} say nothing of the "
            "algorithm's speed: raise run.steps or the bandwidth"
        )
    elif not sent:
        reason = f"nothing was sent in {steps} timed steps"
    return checks if reason is None else {**checks, "passed": False, "reason": reason}
