"""Fits physical parameters to measured or published step times: bounded least squares on the logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from bagua_bench.calibrate.parameters import Parameter, physics
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.physics import Physics
from bagua_bench.machine.compute import Compute, compute_of, speed_classes
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Program
from bagua_bench.machine.scale import scale_model
from bagua_bench.simulate.cluster import Cluster, cluster_of
from bagua_bench.simulate.defaults import settled
from bagua_bench.simulate.posterior import Posterior, names, settings
from bagua_bench.simulate.run import step_seconds

_ROBUST = 0.1  # larger relative errors count linearly, so no single point dominates the fit
_NOISE = 0.05  # relative error that a point is expected to have
_SPREAD = 1 / math.sqrt(12)  # standard deviation of a value known only to lie in its range, in units of the range
_FLOOR = 0.02  # relative error; no point is known better than this

IDEAL: dict[str, float] = {
    **dict.fromkeys(("shaped", "incast", "ring", "process", "inside", "servers", "servers_window", "window"), 1e30),
    **dict.fromkeys(("efficiency_ring", "efficiency_direct", "hop", "carry_over"), 1.0),
    **dict.fromkeys(("latency", "call", "inside_latency", "inside_hop", "gather_hop"), 0.0),
}
"""A network limited only by the line rate and the latency that were asked for."""


@dataclass(frozen=True)
class Case:
    """One known step time, in seconds of the cell's scale model, and the inputs of its prediction."""

    cell: Cell
    program: Program
    compute: Compute
    cluster: Cluster
    seconds: float
    factors: tuple[float, ...] = (1.0,)
    """How many times as long computing takes, for each class of ranks."""

    def predict(self, values: Physics) -> float:
        """Step time with these parameters, seconds."""
        return step_seconds(self.program, replace(self.cluster, physics=values), self.compute, self.factors)

    @property
    def is_possible(self) -> bool:
        """Whether the line could carry the step's bytes in this time, allowing 10 % for shaper and reading errors."""
        free = replace(self.compute, memory_bandwidth=1e30)
        bound = step_seconds(self.program, replace(self.cluster, physics=Physics(**IDEAL)), free)
        return self.seconds > 0.9 * bound


def case(cell: Cell, seconds: float) -> Case:
    """A case from a cell; imports torch."""
    from bagua_bench.simulate.rehearsal import rehearse

    model = scale_model(cell)
    layers, cluster = layers_of(model.task, model.shrink), cluster_of(model, Physics())
    model = settled(model, cluster)
    factors = tuple(speed_classes(model.cluster))
    return Case(cell, rehearse(model), compute_of(model, layers), cluster, seconds / model.haste, factors)


@dataclass(frozen=True)
class Fit:
    """Values of the parameters, and how sure they are.

    covariance: of the values, each as a share of its range, from the curvature of the squared errors and from the
    ranges themselves: a parameter that the points do not tell is anywhere in its range.
    """

    parameters: tuple[Parameter, ...]
    values: NDArray[np.float64]
    covariance: NDArray[np.float64]
    base: Mapping[str, Any]

    @property
    def half_widths(self) -> NDArray[np.float64]:
        """Half-widths of the 95 % intervals."""
        half: NDArray[np.float64] = 1.96 * np.sqrt(np.diag(self.covariance)) * self._spans
        return half

    @property
    def learned(self) -> NDArray[np.float64]:
        """How much of the variance within each range the points have taken away, as a share."""
        left: NDArray[np.float64] = np.diag(self.covariance) / _SPREAD**2
        return 1 - left

    @property
    def _spans(self) -> NDArray[np.float64]:
        return np.array([p.high - p.low for p in self.parameters])

    def posterior(self, cells: Sequence[Cell]) -> Posterior:
        """What the fit knows besides the values; `cells` are those of its points."""
        low, spans = np.array([p.low for p in self.parameters]), self._spans
        unit = (self.values - low) / spans
        away = np.linalg.cholesky(self.covariance)
        for column in range(away.shape[1]):
            step = away[:, column]
            if np.any((unit + step < 0) | (unit + step > 1)):
                step = -step
            away[:, column] = (low + np.clip(unit + step, 0, 1) * spans) / np.where(self.values == 0, 1, self.values)
        steps = {
            p.name if p.transport is None else f"{p.transport}.{p.name}": tuple(float(f"{f:.4g}") for f in away[row])
            for row, p in enumerate(self.parameters)
        }
        known = [settings(cell) for cell in cells]
        keys = [key for key in known[0] if all(key in one for one in known)]
        named = [names(cell) for cell in cells]
        return Posterior(
            steps,
            {key: (min(one[key] for one in known), max(one[key] for one in known)) for key in keys},
            {key: tuple(sorted({one[key] for one in named})) for key in named[0]},
        )

    def errors(self, cases: Sequence[Case]) -> NDArray[np.float64]:
        """Relative errors of the predictions, predicted / known - 1."""
        found = [c.predict(self.physics(c)) / c.seconds - 1 for c in cases]
        return np.array(found)

    def physics(self, c: Case) -> Physics:
        """The parameters that a case is predicted with."""
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
    covariance = _covariance(found.fun[: len(cases)], found.jac[: len(cases)])
    return Fit(tuple(parameters), low + found.x * (high - low), covariance, base)


def _covariance(errors: NDArray[np.float64], jac: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the parameters as shares of their ranges: what the points tell, and that each lies in its range."""
    freedom = max(1, len(errors) - jac.shape[1])
    variance = max(float(np.sum(errors**2)) / freedom, _FLOOR**2)
    found: NDArray[np.float64] = np.linalg.inv(jac.T @ jac / variance + np.eye(jac.shape[1]) / _SPREAD**2)
    return found
