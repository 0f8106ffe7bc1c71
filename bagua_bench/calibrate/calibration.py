"""Calibrates a cluster on published figures or on records of this suite, and tabulates the errors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from bagua_bench.calibrate import published, quality
from bagua_bench.calibrate.fit import Case, Fit, case, fit
from bagua_bench.calibrate.parameters import GLOO, NAMESPACES, OTHER_CAMPAIGN, PAPER, PUBLISHED, Parameter, tree
from bagua_bench.calibrate.selection import condition, simulable, simulated
from bagua_bench.configuration.cell import Cell, ClusterPart, ComputePart, NetworkPart
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.physics import Physics, physics_of
from bagua_bench.configuration.resolve import register
from bagua_bench.configuration.selection import Selection
from bagua_bench.results import records
from bagua_bench.simulate.posterior import file_of, posterior_of

_STEPS = ("mode=simulate", "run.steps=1", "run.untimed=1")
_PUBLISHED = ("cluster=bagua_paper", "run.bucket_size=10MiB", "run.channels=1")
"""The cluster of the published figures, and the buckets that Bagua had there."""
_FOLDS, _HALVES = 5, 3
_BY_FIGURE = "one figure left out"


@dataclass(frozen=True)
class Known:
    """A known step time, and where it is shown.

    role: in the fit, to be predicted, or shown although the line could not carry it.
    """

    figure: str
    panel: str
    label: str
    case: Case
    role: Literal["fitted", "predicted", "impossible"]
    condition: str = ""
    """What is special about where it was measured (`conditions`)."""


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
        own = quality.uncertainty(found, self.cases)
        if not self._can_leave_out:  # so few points tell little of the model's error
            own = max(own, self.base.get("uncertainty", Physics().uncertainty))
        layout.physics.uncertainty = float(f"{own:.2g}")
        path.write_text("\n".join(head) + "\n" * bool(head) + OmegaConf.to_yaml(layout))
        unseen = float(f"{quality.unseen(found, self.cases, self._predicted):.2g}")
        posterior = replace(found.posterior([case.cell for case in self.cases]), unseen=unseen)
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
                    "window": _window(cell.network, cell.shrink),
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
        known, left_out = _recorded(files, chosen)
        return Source(cluster, known, *_unknowns(known), chosen, left_out)
    if chosen is not None:
        raise ValueError(f"--fit {chosen}: selects among --records, and there are none")
    if cluster == "bagua_paper":
        return Source(cluster, _published(folder), PAPER, PUBLISHED)
    if cluster == "bagua_paper_e2e":
        base = OmegaConf.to_container(OmegaConf.load(_file("bagua_paper")))
        assert isinstance(base, dict)
        return Source(cluster, _end_to_end(folder), OTHER_CAMPAIGN, base.get("physics", {}))
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
    return NAMESPACES, {"transport": {name: GLOO for name, backend in transports.items() if backend == "gloo"}}


def _cells(overrides: Iterable[Sequence[str]]) -> list[Cell]:
    with initialize_config_dir(str(FOLDER), version_base=None):
        return [compose_cell([*_STEPS, *each]) for each in overrides]


def _cell(overrides: Sequence[str]) -> Cell:
    return _cells([overrides])[0]


@cache
def _compute() -> ComputePart:
    return _cell([]).profile


def _with_cluster(cluster: ClusterPart, name: str) -> ClusterPart:
    """The cluster with the parameters in the file of cluster `name`."""
    loaded = OmegaConf.to_container(OmegaConf.load(_file(name)))
    assert isinstance(loaded, dict)
    return replace(cluster, physics=loaded.get("physics") or {})


def _published(folder: Path) -> list[Known]:
    known = []
    points = list(published.distinct(published.points(folder)))
    for point, cell in zip(points, _cells([*_PUBLISHED, *p.overrides] for p in points), strict=True):
        made = case(cell, point.step_seconds(cell.task.batch))
        panel = f"{point.figure} {point.bandwidth:g} Gbit/s {point.latency:g} ms"
        role: Literal["fitted", "impossible"] = "fitted" if point.fitted and made.is_possible else "impossible"
        known.append(Known(point.figure, panel, point.label, made, role))
    return known


def _end_to_end(folder: Path) -> list[Known]:
    known = []
    runs = list(published.end_to_end(folder))
    cells = _cells([*_PUBLISHED, *overrides] for _, overrides, _ in runs)
    for (label, _, seconds), cell in zip(runs, cells, strict=True):
        known.append(Known("e2e_vgg16", "e2e_vgg16", label, case(cell, seconds), "fitted"))
    return known


def _recorded(files: Sequence[Path], chosen: str | None) -> tuple[list[Known], str]:
    """One point per cell, and a line on the records left out. ValueError if there are none to fit."""
    selection = Selection.read(chosen or "", _cell, "--fit ")
    found, left_out = simulable(records.read(files))
    if not found:
        raise ValueError(f"{files[0]}: no record of a finished measured or emulated run; {left_out}".removesuffix("; "))
    cells: dict[str, list[records.Record]] = {}
    for record in found:
        cells.setdefault(record["cell"], []).append(record)
    known = [_point(rounds, selection) for rounds in cells.values()]
    if all(k.role == "predicted" for k in known):
        raise ValueError(f"--fit {chosen}: none of the {len(known)} cells in {', '.join(map(str, files))} matches")
    return known, left_out


def _point(rounds: Sequence[records.Record], selection: Selection) -> Known:
    """The median step over all rounds: a lost packet delays single steps by TCP's minimum timeout, 0.2 s."""
    first, original = rounds[0], records.cell_of(rounds[0])
    role: Literal["fitted", "predicted"] = "fitted" if original in selection else "predicted"
    cell = simulated(original)
    cell = _as_sent(replace(cell, run=replace(cell.run, steps=1, untimed=max(1, cell.run.untimed))), first["result"])
    if cell.compute is None:  # computing was real, so its time is known
        known = replace(cell.task, step_seconds=_computing(rounds) / cell.run.accumulate)
        cell = replace(cell, compute=_compute(), task=known)
    seconds = float(np.median([step for r in rounds for step in r["result"]["step_seconds"]]))
    network = cell.network
    rate = f"{network.bandwidth / 1e9:g} Gbit/s" if network.bandwidth else "unlimited"
    link = f"{rate} {network.latency * 1e3:g} ms, {_window(network)}"
    panel = f"{cell.task.name}, {first['ranks']} ranks, {link}"
    return Known(first["campaign"], panel, cell.algo.name, case(cell, seconds), role, condition(original))


def _as_sent(cell: Cell, result: dict[str, Any]) -> Cell:
    """The cell with the buckets and channels that the engine had in the run."""
    sending, run = result.get("sending"), cell.run
    if sending is None:
        return cell
    return replace(cell, run=replace(run, bucket_size=sending["bucket_size"], channels=sending["channels"]))


def _window(network: NetworkPart, shrunk: float = 1.0) -> str:
    return f"windows of {network.tcp_window * shrunk / 2**20:.3g} MiB"


def _computing(rounds: Sequence[records.Record]) -> float:
    """Seconds of a step without the communication that it waits for."""
    phases = [r["result"]["phase_seconds"] for r in rounds]
    return float(np.mean([sum(p.values()) - p["communication"] for p in phases]))
