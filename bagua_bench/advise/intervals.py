"""How sure a prediction is: the model's own error, and that of its parameters, which grows away from the points."""

from __future__ import annotations

import math
from dataclasses import replace

from bagua_bench.advise.ranking import Setting
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.physics import Physics
from bagua_bench.simulate.posterior import posterior_of
from bagua_bench.simulate.run import step_seconds


def share_of_ratio(cell: Cell, other: Cell) -> float:
    """Relative error that nine of ten ratios of two cells' steps stay within; what moves both alike does not count."""
    posterior, own = posterior_of(cell.cluster.name), Setting(cell).cluster.physics.uncertainty
    if posterior is None:
        return own
    apart = [a - b for a, b in zip(_spread(cell), _spread(other), strict=True)]
    return math.expm1(posterior.width(own, apart, cell, other))


def _spread(cell: Cell) -> list[float]:
    """Logarithms of how many times as long the step takes, one standard deviation away in each direction."""
    posterior, setting = posterior_of(cell.cluster.name), Setting(cell)
    assert posterior is not None

    def seconds(physics: Physics) -> float:
        return step_seconds(
            setting.program, replace(setting.cluster, physics=physics), setting.compute, setting.factors
        )

    return posterior.spread(setting.cluster.physics, cell.transport.name, seconds)
