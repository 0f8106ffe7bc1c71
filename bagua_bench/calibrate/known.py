"""Points that a cluster may be calibrated on: published step times, and those of this suite's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hydra import initialize_config_dir

from bagua_bench.calibrate import published
from bagua_bench.calibrate.fit import Case, case
from bagua_bench.calibrate.selection import condition, simulable, simulated
from bagua_bench.configuration.cell import Cell, ComputePart, NetworkPart
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.selection import Selection
from bagua_bench.results import records

_STEPS = ("mode=simulate", "run.steps=1", "run.untimed=1")
_PUBLISHED = ("cluster=bagua_paper", "run.bucket_size=10MiB", "run.channels=1")
"""The cluster of the published figures, and the buckets that Bagua had there."""


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


def of_figures(folder: Path) -> list[Known]:
    """The points of the published figures, from the CSV files in a folder."""
    known = []
    points = list(published.distinct(published.points(folder)))
    for point, cell in zip(points, _cells([*_PUBLISHED, *p.overrides] for p in points), strict=True):
        made = case(cell, point.step_seconds(cell.task.batch))
        panel = f"{point.figure} {point.bandwidth:g} Gbit/s {point.latency:g} ms"
        role: Literal["fitted", "impossible"] = "fitted" if point.fitted and made.is_possible else "impossible"
        known.append(Known(point.figure, panel, point.label, made, role))
    return known


def of_end_to_end(folder: Path) -> list[Known]:
    """The published step times of whole trainings, of another campaign than the figures."""
    known = []
    runs = list(published.end_to_end(folder))
    cells = _cells([*_PUBLISHED, *overrides] for _, overrides, _ in runs)
    for (label, _, seconds), cell in zip(runs, cells, strict=True):
        known.append(Known("e2e_vgg16", "e2e_vgg16", label, case(cell, seconds), "fitted"))
    return known


def of_records(files: Sequence[Path], chosen: str | None) -> tuple[list[Known], str]:
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
    link = f"{rate} {network.latency * 1e3:g} ms, {window(network)}"
    panel = f"{cell.task.name}, {first['ranks']} ranks, {link}"
    return Known(first["campaign"], panel, cell.algo.name, case(cell, seconds), role, condition(original))


def _as_sent(cell: Cell, result: dict[str, Any]) -> Cell:
    """The cell with the buckets and channels that the engine had in the run."""
    sending, run = result.get("sending"), cell.run
    if sending is None:
        return cell
    return replace(cell, run=replace(run, bucket_size=sending["bucket_size"], channels=sending["channels"]))


def window(network: NetworkPart) -> str:
    """The TCP windows of a network, in words."""
    return f"windows of {network.tcp_window / 2**20:.3g} MiB"


def _computing(rounds: Sequence[records.Record]) -> float:
    """Seconds of a step without the communication that it waits for."""
    phases = [r["result"]["phase_seconds"] for r in rounds]
    return float(np.mean([sum(p.values()) - p["communication"] for p in phases]))


def _cells(overrides: Iterable[Sequence[str]]) -> list[Cell]:
    with initialize_config_dir(str(FOLDER), version_base=None):
        return [compose_cell([*_STEPS, *each]) for each in overrides]


def _cell(overrides: Sequence[str]) -> Cell:
    return _cells([overrides])[0]


@cache
def _compute() -> ComputePart:
    return _cell([]).profile
