"""What autotuning may change of the transport, which reads its settings when a group connects."""

from __future__ import annotations

from collections.abc import Mapping

from bagua_bench.transport import environment


class Tunable:
    """The part of a group that autotuning sees."""

    @property
    def settings(self) -> dict[str, int]:
        """The keys of `choices` as the environment sets them for the next group."""
        return environment.tuned()

    @property
    def choices(self) -> dict[str, range]:
        """What can be tuned, and to which values."""
        return environment.CHOICES

    def variables(self, settings: Mapping[str, int]) -> dict[str, str]:
        """Environment variables with which a group has these settings."""
        return environment.of_tuned(settings)
