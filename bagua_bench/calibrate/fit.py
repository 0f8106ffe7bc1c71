"""Fits physical parameters to measured or published step times: bounded least squares on the logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import t as student

from bagua_bench.calibrate.parameters import Parameter, physics
from bagua_bench.configuration.cell import Cell
from bagua_bench.machine.compute import Compute, compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Program
from bagua_bench.machine.scale import scale_model
from bagua_bench.simulate.cluster import Cluster, Physics, cluster_of
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.run import step_seconds

_ROBUST = 0.1  # larger relative errors count linearly, so no single point dominates the fit
_NOISE = 0.05  # relative error that a point is expected to have
_SPREAD = 1 / math.sqrt(12)  # standard deviation of a value known only to lie in its range, in units of the range
_FLOOR = 0.02  # relative error; no point is known better than this

IDEAL: dict[str, float] = {
    **dict.fromkeys(
        ("shaped", "incast", "ring", "connection", "process", "inside", "servers", "servers_window", "window"), 1e30
    ),
    **dict.fromkeys(("efficiency_ring", "efficiency_direct", "efficiency_servers", "hop", "carry_over"), 1.0),
    **dict.fromkeys(("latency", "call", "inside_latency", "inside_hop", "gather_hop", "interference"), 0.0),
}
"""A network limited only by the line rate and the latency that were asked for."""


@dataclass(frozen=True)
class Case:
    """One known step time, seconds, and the inputs of its prediction."""

    cell: Cell
    program: Program
    compute: Compute
    cluster: Cluster
    seconds: float

    def predict(self, values: Physics) -> float:
        """Step time with these parameters, seconds."""
        return step_seconds(self.program, replace(self.cluster, physics=values), self.compute)

    @property
    def is_possible(self) -> bool:
        """Whether the line could carry the step's bytes in this time, allowing 10 % for shaper and reading errors."""
        free = replace(self.compute, memory_bandwidth=1e30)
        bound = step_seconds(self.program, replace(self.cluster, physics=Physics(**IDEAL)), free)
        return self.seconds > 0.9 * bound


def case(cell: Cell, seconds: float) -> Case:
    """A case from a cell; imports torch."""
    from bagua_bench.simulate.rehearsal import rehearse

    cell = scale_model(cell)
    layers, cluster = layers_of(cell.task, cell.shrink), cluster_of(cell, Physics())
    cell = settled(cell, cluster)
    return Case(cell, rehearse(cell), compute_of(cell, layers), cluster, seconds / cell.haste)


@dataclass(frozen=True)
class Fit:
    """Values of the parameters and their 95 % intervals, from the curvature of the squared errors."""

    parameters: tuple[Parameter, ...]
    values: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    base: Mapping[str, Any]

    def errors(self, cases: Sequence[Case]) -> NDArray[np.float64]:
        """Relative errors of the predictions, predicted / known - 1."""
        found = [c.predict(self._physics(c)) / c.seconds - 1 for c in cases]
        return np.array(found)

    def _physics(self, c: Case) -> Physics:
        return physics(list(self.values), self.parameters, self.base, c.cell.transport.name)


def fit(
    cases: Sequence[Case],
    parameters: Sequence[Parameter],
    base: Mapping[str, Any] | None = None,
    start: NDArray[np.float64] | None = None,
    evaluations: int = 60,
) -> Fit:
    """Fit the parameters, each within its range; the others come from `base`.

    The usual value of each parameter counts as one more point. A few points then cannot drive a parameter that they
    hardly constrain to the end of its range.
    """
    base = base or {}
    low, high = (np.array([getattr(p, end) for p in parameters]) for end in ("low", "high"))
    begin = np.array([p.start for p in parameters]) if start is None else start

    def residuals(unit: NDArray[np.float64]) -> NDArray[np.float64]:
        given = list(low + unit * (high - low))
        over = {n: physics(given, parameters, base, n) for n in {c.cell.transport.name for c in cases}}
        return np.array([math.log(c.predict(over[c.cell.transport.name]) / c.seconds) for c in cases])

    usual = np.array([p.start for p in parameters])

    def all_residuals(unit: NDArray[np.float64]) -> NDArray[np.float64]:
        prior = _NOISE / _SPREAD * (unit - (usual - low) / (high - low))
        return np.concatenate([residuals(unit), prior])

    unit = np.clip((begin - low) / (high - low), 1e-3, 1 - 1e-3)
    found = least_squares(
        all_residuals, unit, bounds=(0, 1), diff_step=1e-3, loss="soft_l1", f_scale=_ROBUST, max_nfev=evaluations
    )
    widths = _half_widths(found.fun[: len(cases)], found.jac[: len(cases)])
    return Fit(tuple(parameters), low + found.x * (high - low), widths * (high - low), base)


def _half_widths(errors: NDArray[np.float64], jac: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half-widths of the 95 % intervals from the points alone, as shares of the range; 1 where they tell nothing."""
    freedom = max(1, len(errors) - jac.shape[1])
    variance = max(float(np.sum(errors**2)) / freedom, _FLOOR**2)
    covariance = np.linalg.pinv(jac.T @ jac) * variance
    flat = np.linalg.norm(jac, axis=0) < 1e-6
    widths = student.ppf(0.975, freedom) * np.sqrt(np.clip(np.diag(covariance), 0, None))
    half: NDArray[np.float64] = np.where(flat, 1.0, np.minimum(widths, 1.0))
    return half
