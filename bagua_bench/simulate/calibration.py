"""What a cluster is calibrated on: published figures, or records of this suite; and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from bagua_bench import config, records
from bagua_bench.campaign import compose_cell
from bagua_bench.simulate import published, report
from bagua_bench.simulate.cluster import physics_of
from bagua_bench.simulate.fit import Case, Fit, case, fit
from bagua_bench.simulate.parameters import NAMESPACES, OTHER_CAMPAIGN, PAPER, Parameter, tree

_STEPS = ("mode=simulate", "run.steps=1", "run.untimed=1")
_FOLDS, _HALVES = 5, 3


@dataclass(frozen=True)
class Known:
    """A known step time, and where it is shown."""

    figure: str
    panel: str
    label: str
    case: Case
    fitted: bool


@dataclass(frozen=True)
class Source:
    """Known step times, the parameters that they shall determine, and the cluster file that keeps them."""

    cluster: str
    known: Sequence[Known]
    parameters: Sequence[Parameter]
    base: dict[str, Any]

    def calibrate(self) -> Fit:
        """Fit the parameters to the points that are to be fitted."""
        return fit([k.case for k in self.known if k.fitted], self.parameters, self.base)

    def write(self, found: Fit) -> Path:
        """Put the values into the cluster's file, and say in it where they come from."""
        path = config.CONF / "cluster" / f"{self.cluster}.yaml"
        head = [line for line in path.read_text().splitlines() if line.startswith("#")] if path.exists() else []
        layout = OmegaConf.load(path) if path.exists() else OmegaConf.create({"servers": 2, "ranks_per_server": 1})
        layout.physics = tree([float(v) for v in found.values], self.parameters, self.base)
        inside = found.errors([k.case for k in self.known if k.fitted])
        layout.physics.uncertainty = float(f"{np.quantile(np.abs(inside), 0.9):.2g}")
        path.write_text("\n".join(head) + "\n" * bool(head) + OmegaConf.to_yaml(layout))
        return path

    def errors(self) -> pd.DataFrame:
        """Every point with the prediction of the cluster's file as it stands."""
        rows = []
        for k in self.known:
            predicted = k.case.predict(physics_of(_with_cluster(k.case.cell, self.cluster)))
            rows.append(
                {
                    "figure": k.figure,
                    "panel": k.panel,
                    "label": k.label,
                    "fitted": k.fitted,
                    "seconds": k.case.seconds,
                    "predicted": predicted,
                    "error": predicted / k.case.seconds - 1,
                }
            )
        return pd.DataFrame(rows)

    def validate(self) -> Iterator[tuple[str, pd.DataFrame | str]]:
        """Tables of errors: of the cluster's file, then of points left out of new fits."""
        data = self.errors()
        shown, inside = data[~data["fitted"]], data[data["fitted"]]
        yield "points in the fit, by figure", report.by(inside, "figure")
        yield "points in the fit, by system or algorithm", report.by(inside, "label")
        yield "all points in the fit", pd.DataFrame({"": report.summary(inside["error"])}).T
        right, pairs = report.ranking(inside)
        yield (
            "ranking",
            f"{right} of {pairs} pairs more than 5 % apart in the right order ({right / max(pairs, 1):.1%})",
        )
        if len(shown):
            yield "shown, not fitted (no such line could carry them)", shown
        if len(inside) < 2 * len(self.parameters):
            return  # too few to leave any out
        cases, best = [k.case for k in self.known if k.fitted], self.calibrate()
        figures = [k.figure for k in self.known if k.fitted]
        splits: dict[str, Sequence[object]] = {
            "one figure left out": figures,
            f"{_FOLDS}-fold": report.folds(len(cases), _FOLDS),
        }
        for seed in range(_HALVES):
            splits[f"random half {seed + 1}"] = report.folds(len(cases), 2, seed)
        rows = {}
        for name, groups in splits.items():
            errors = report.held_out(cases, groups, self.parameters, best)
            rows[name] = report.summary(pd.Series(errors))
        yield "points when they were not in the fit", pd.DataFrame(rows).T
        yield "largest errors in the fit", inside.loc[inside["error"].abs().sort_values(ascending=False).index[:12]]


def open_source(cluster: str, folder: Path, files: Sequence[Path] | None) -> Source:
    """What a cluster of this name is calibrated on. ValueError if there is nothing."""
    config.register()
    if files:
        known = _recorded(files)
        if not known:
            raise ValueError(f"{files[0]}: no record of a finished measured or emulated run")
        return Source(cluster, known, NAMESPACES, {})
    if cluster == "bagua_paper":
        return Source(cluster, _published(folder), PAPER, {})
    if cluster == "bagua_paper_e2e":
        base = OmegaConf.to_container(OmegaConf.load(config.CONF / "cluster" / "bagua_paper.yaml"))
        assert isinstance(base, dict)
        return Source(cluster, _end_to_end(folder), OTHER_CAMPAIGN, base.get("physics", {}))
    raise ValueError(f"--cluster {cluster}: allowed without --records: bagua_paper, bagua_paper_e2e")


def _cell(overrides: Sequence[str]) -> dict[str, Any]:
    with initialize_config_dir(str(config.CONF), version_base=None):
        return compose_cell([*_STEPS, *overrides])


def _with_cluster(cell: dict[str, Any], name: str) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(config.CONF / "cluster" / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    return {**cell, "cluster": {**cell["cluster"], "physics": loaded.get("physics")}}


def _published(folder: Path) -> list[Known]:
    known = []
    for point in published.distinct(published.points(folder)):
        cell = _cell(["cluster=bagua_paper", *point.overrides])
        made = case(cell, point.step_seconds(cell["task"]["batch"]))
        panel = f"{point.figure} {point.bandwidth:g} Gbit/s {point.latency:g} ms"
        known.append(Known(point.figure, panel, point.label, made, point.fitted and made.is_possible))
    return known


def _end_to_end(folder: Path) -> list[Known]:
    known = []
    for label, overrides, seconds in published.end_to_end(folder):
        cell = _cell(["cluster=bagua_paper", *overrides])
        known.append(Known("e2e_vgg16", "e2e_vgg16", label, case(cell, seconds), True))
    return known


def _recorded(files: Sequence[Path]) -> list[Known]:
    """One point per cell: the mean step over its rounds."""
    cells: dict[str, list[records.Record]] = {}
    for record in records.read(files):
        if record["status"] == "done" and record["source"] in ("measured", "emulated"):
            cells.setdefault(record["cell"], []).append(record)
    known = []
    for rounds in cells.values():
        first = rounds[0]
        cell = {**first["config"], "mode": "simulate"}
        cell["run"] = {**cell["run"], "steps": 1, "untimed": max(1, cell["run"]["untimed"])}
        cell.setdefault("compute", _cell([])["compute"])
        seconds = float(np.mean([np.mean(r["result"]["step_seconds"]) for r in rounds]))
        network = cell["network"]
        panel = f"{cell['task']['name']}, {first['ranks']} ranks, {network['bandwidth']}, {network['latency']}"
        known.append(Known(first["campaign"], panel, cell["algo"]["name"], case(cell, seconds), True))
    return known
