"""Calibrates a cluster on published figures or on records of this suite, and tabulates the errors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from bagua_bench.calibrate import quality
from bagua_bench.calibrate.fit import Case, Fit, fit
from bagua_bench.calibrate.known import Known, of_end_to_end, of_figures, of_records, window
from bagua_bench.calibrate.parameters import (
    BAGUA_NET,
    GLOO,
    NAMESPACES,
    OTHER_CAMPAIGN,
    PAPER,
    PUBLISHED,
    Parameter,
    tree,
)
from bagua_bench.configuration.cell import ClusterPart
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.physics import Physics, physics_of
from bagua_bench.configuration.resolve import register
from bagua_bench.simulate.posterior import file_of, posterior_of

_FOLDS, _HALVES = 5, 3
_BY_FIGURE = "one figure left out"


@dataclass(frozen=True)
class Source:
    """Known step times, the parameters to fit to them, and the cluster file that keeps the result."""

    cluster: str
    known: Sequence[Known]
    parameters: Sequence[Parameter]
    base: dict[str, Any]
    fit: str | None = None
    """Settings of the records that the fit uses; None: all records."""
    left_out: str = ""
    """Records that cannot be simulated: how many, and why."""
    base_name: str = ""
    """The cluster whose fitted values `base` are; empty if it is what is known of transports."""

    @property
    def cases(self) -> list[Case]:
        """The points that the fit uses."""
        return [k.case for k in self.known if k.role == "fitted"]

    @property
    def _predicted(self) -> list[Case]:
        """The points that the fit does not use, but could."""
        return [k.case for k in self.known if k.role == "predicted"]

    def with_own(self, wanted: str) -> Source:
        """The same with one more parameter, TRANSPORT.PARAMETER, that is a transport's own. ValueError, one line."""
        transport, _, name = wanted.partition(".")
        keys, own = {p.key for p in self.parameters}, [p for p in self.parameters if p.name == name]
        transports = {case.cell.transport.name for case in self.cases}
        if not own or transport not in transports:
            known = f"{'|'.join(sorted(transports))}, then {'|'.join(sorted({p.name for p in self.parameters}))}"
            raise ValueError(f"--also {wanted}: allowed: {known}")
        added = replace(own[0], transport=transport)
        if added.key in keys:
            raise ValueError(f"--also {wanted}: is in the fit anyway")
        return replace(self, parameters=(*self.parameters, added))

    def calibrate(self) -> Fit:
        """Fit the parameters to the points in the fit."""
        return fit(self.cases, self.parameters, self.base)

    def write(self, found: Fit) -> Path:
        """Write the values to the cluster's file, with the settings of the records used and the uncertainty."""
        path = _file(self.cluster)
        head = [line for line in path.read_text().splitlines() if line.startswith("#")] if path.exists() else []
        layout = OmegaConf.load(path) if path.exists() else OmegaConf.create({"servers": 2, "ranks_per_server": 1})
        layout.physics = tree([float(v) for v in found.values], self.parameters, self.base)
        if self.fit is not None:
            layout.physics.fit = self.fit
        own, usual = quality.uncertainty(found, self.cases), self.base.get("uncertainty", Physics().uncertainty)
        taken = not self._can_leave_out and usual > own  # so few points tell little of the model's error
        own = usual if taken else own
        layout.physics.uncertainty = float(f"{own:.2g}")
        path.write_text("\n".join(head) + "\n" * bool(head) + OmegaConf.to_yaml(layout))
        unseen = float(f"{quality.unseen(found, self.cases, self._predicted):.2g}")
        posterior = replace(found.posterior([case.cell for case in self.cases]), unseen=unseen)
        posterior = replace(posterior, error_of=self.base_name if taken else None)
        if below := posterior_of(self.base_name):
            posterior = posterior.over(below)
        posterior.write(file_of(path.parent, self.cluster))
        return path

    @property
    def _can_leave_out(self) -> bool:
        """Whether there are enough points for a fit without some of them."""
        return len(self.cases) >= 2 * len(self.parameters)

    def errors(self) -> pd.DataFrame:
        """Every point, with its prediction by the cluster's current file."""
        rows = []
        for k in self.known:
            cell = k.case.cell
            predicted = k.case.predict(physics_of(_with_cluster(cell.cluster, self.cluster), cell.transport.name))
            rows.append(
                {
                    "figure": k.figure,
                    "panel": k.panel,
                    "label": k.label,
                    "task": cell.task.name,
                    "window": window(cell.network),
                    "condition": k.condition,
                    "role": k.role,
                    "seconds": k.case.seconds * cell.haste,
                    "predicted": predicted * cell.haste,
                    "error": predicted / k.case.seconds - 1,
                }
            )
        return pd.DataFrame(rows)

    def validate(self) -> Iterator[tuple[str, pd.DataFrame | str]]:
        """Titles and tables of errors: by the cluster's file, then of points left out of new fits."""
        data = self.errors()
        parts = {role: data[data["role"] == role] for role in ("fitted", "predicted", "impossible")}
        yield from _tables("points in the fit", parts["fitted"])
        if len(parts["predicted"]):
            yield "the fit uses", str(self.fit)
            yield from _tables("predicted points", parts["predicted"])
            yield "intervals of predicted points", self._in_intervals()
            yield "every predicted point", parts["predicted"].drop(columns=["role", "window", "condition"])
        if len(parts["impossible"]):
            shown = parts["impossible"].drop(columns=["role", "window", "condition"])
            yield "shown, not fitted (no such line could carry them)", shown
        if self._can_leave_out:
            yield from self._left_out()
        inside = parts["fitted"]
        yield (
            "largest errors in the fit",
            inside.loc[inside["error"].abs().sort_values(ascending=False).index[:12]].drop(
                columns=["role", "window", "condition"]
            ),
        )

    def _in_intervals(self) -> pd.DataFrame:
        """How many predicted points lie in their intervals: where settings are like those of the fit, and elsewhere."""
        found, written = self.calibrate(), posterior_of(self.cluster)
        posterior = found.posterior([case.cell for case in self.cases])
        held = pd.Series(quality.inside(found, self.cases, self._predicted, (written or posterior).unseen))
        figures = [k.figure for k in self.known if k.role == "predicted"]
        where = pd.Series(
            [
                f"{figure}, {'extrapolated' if posterior.beyond(case.cell) else 'like the fit'}"
                for figure, case in zip(figures, self._predicted, strict=True)
            ]
        )
        return pd.DataFrame({"points": held.groupby(where).size(), "inside": held.groupby(where).mean()})

    def _left_out(self) -> Iterator[tuple[str, pd.DataFrame | str]]:
        """Errors of the fitted points in fits without them, and how many of their intervals hold them."""
        cases, best = self.cases, self.calibrate()
        figures = [k.figure for k in self.known if k.role == "fitted"]
        splits: dict[str, Sequence[Hashable]] = {f"{_FOLDS}-fold": quality.folds(len(cases), _FOLDS)}
        if several := len(set(figures)) > 1:
            splits = {_BY_FIGURE: figures, **splits}
        for seed in range(_HALVES):
            splits[f"random half {seed + 1}"] = quality.folds(len(cases), 2, seed)
        fits = {name: quality.without(cases, groups, self.parameters, best) for name, groups in splits.items()}
        errors = {name: quality.held_out(cases, groups, fits[name]) for name, groups in splits.items()}
        rows = {name: quality.summary(pd.Series(each)) for name, each in errors.items()}
        yield "points when they were not in the fit", pd.DataFrame(rows).T
        if several:
            share = quality.coverage(cases, figures, fits[_BY_FIGURE])
            yield (
                "intervals of points when their figure was not in the fit",
                f"{share:.0%} of {len(cases)} points lie in intervals that are to hold 90 %",
            )


def _tables(title: str, data: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame | str]]:
    names = {
        "figure": "figure or campaign",
        "task": "task",
        "label": "system or algorithm",
        "window": "TCP window",
        "condition": "condition",
    }
    for column, name in names.items():
        if data[column].nunique() > 1:
            yield f"{title}, by {name}", quality.by(data, column)
    yield f"all {title}", pd.DataFrame({"": quality.summary(data["error"])}).T
    right, pairs = quality.ranking(data)
    agree = f"{right} of {pairs} pairs more than 5 % apart in the right order"
    yield f"ranking of {title}", f"{agree} ({right / pairs:.1%})" if pairs else agree


def open_source(cluster: str, folder: Path, files: Sequence[Path] | None, chosen: str | None = None) -> Source:
    """The data that a cluster of this name is calibrated on. ValueError if there are none.

    chosen: settings of the records that the fit uses (`bagua_bench.configuration.selection`); None for all.
    """
    register()
    if files:
        known, left_out = of_records(files, chosen)
        return Source(cluster, known, *_unknowns(known), chosen, left_out)
    if chosen is not None:
        raise ValueError(f"--fit {chosen}: selects among --records, and there are none")
    if cluster == "bagua_paper":
        return Source(cluster, of_figures(folder), PAPER, PUBLISHED)
    if cluster == "bagua_paper_e2e":
        base = OmegaConf.to_container(OmegaConf.load(_file("bagua_paper")))
        assert isinstance(base, dict)
        known = of_end_to_end(folder)
        return Source(cluster, known, OTHER_CAMPAIGN, base.get("physics", {}), base_name="bagua_paper")
    raise ValueError(f"--cluster {cluster}: allowed without --records: bagua_paper, bagua_paper_e2e")


def cluster_folder() -> Path:
    """The folder of the clusters' files."""
    return FOLDER / "cluster"


def _file(cluster: str) -> Path:
    return cluster_folder() / f"{cluster}.yaml"


def fit_of(cluster: str) -> str | None:
    """The settings of the records that a cluster's file was fitted to, as `calibrate` stored them there."""
    path = _file(cluster)
    if not path.exists():
        raise ValueError(f"--cluster {cluster}: {path} does not exist; calibrate writes it")
    chosen = OmegaConf.select(OmegaConf.load(path), "physics.fit")
    return None if chosen is None else str(chosen)


def _unknowns(known: Sequence[Known]) -> tuple[tuple[Parameter, ...], dict[str, Any]]:
    """The parameters to fit to records of this kind, and what is known about their transports."""
    transports = {k.case.cell.transport.name: k.case.cell.transport.backend for k in known}
    if "nccl" in transports.values():
        return tuple(p for p in PAPER if p.transport is None or p.transport in transports), PUBLISHED
    usual = {"gloo": GLOO, "bagua_net": BAGUA_NET}
    named = {name: usual[backend] for name, backend in transports.items() if backend in usual}
    return NAMESPACES, {"transport": {**usual, **named}}


def _with_cluster(cluster: ClusterPart, name: str) -> ClusterPart:
    """The cluster with the parameters in the file of cluster `name`."""
    loaded = OmegaConf.to_container(OmegaConf.load(_file(name)))
    assert isinstance(loaded, dict)
    return replace(cluster, physics=loaded.get("physics") or {})
