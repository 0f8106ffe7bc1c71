"""Two sets of cells side by side: what they have in common, what differs, by how much. No torch import."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bagua_bench.analysis.side import Side, settings
from bagua_bench.results import records, stats
from bagua_bench.results.records import Record

ROUNDS = 5
"""Fewer are no claim."""
_RESAMPLES = 2000
_OTHER_WORK = ("mode", "task.name", "task._target_", "task.scale")
Difference = tuple[str, Any, Any]


@dataclass(frozen=True)
class Comparison:
    """Cell B against cell A."""

    cells: tuple[str, str]
    names: tuple[str, str]
    rounds: tuple[int, int]
    seconds: tuple[float, float]
    """Mean time of a step."""
    ratio: float
    """Of B's to A's."""
    interval: tuple[float, float]
    """95 %; both ends are the ratio with fewer than three rounds on a side."""
    noise: float
    verdict: str
    obstacles: tuple[str, ...]
    """Why the two are not comparable."""
    differences: tuple[Difference, ...]


def pairs(a: Side, b: Side) -> tuple[list[tuple[list[Record], list[Record]]], int]:
    """Cells that belong together, and how many belong to none.

    One cell on each side: these two. Otherwise those that have the same settings, but for the groups or keys by which
    the sides were chosen. ValueError, one line, if there are none.
    """
    if len(a.cells) == len(b.cells) == 1:
        return [(next(iter(a.cells.values())), next(iter(b.cells.values())))], 0
    axes = {*a.keys, *b.keys}
    left, right = _by_rest(a, axes), _by_rest(b, axes)
    found = [(left[rest], right[rest]) for rest in left if rest in right]
    if not found:
        raise ValueError(
            f"{a.text} has {len(a.cells)} cells, {b.text} has {len(b.cells)}, and none in common: choose one of each "
            "with PATH:CELL, or some with PATH:KEY=VALUE,..."
        )
    return found, len(a.cells) + len(b.cells) - 2 * len(found)


def _by_rest(side: Side, axes: set[str]) -> dict[str, list[Record]]:
    """Cells by their settings without the axes; where several have the same, they cannot be told apart: none."""
    found: dict[str, list[list[Record]]] = {}
    for group in side.cells.values():
        own = settings(group[0])
        rest = {key: value for key, value in own.items() if not axes & {key, key.partition(".")[0]}}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(group)
    return {rest: groups[0] for rest, groups in found.items() if len(groups) == 1}


def compare(a: Sequence[Record], b: Sequence[Record], around: Sequence[Sequence[Record]] = ()) -> Comparison:
    """What differs between two cells, given by their rounds, and whether that is significant.

    around: other cells of their campaigns. Those that differ from one of the two in algorithm and `run` alone have a
    say in the A/A noise, as in a figure.
    """
    first, second = a[0], b[0]
    config = tuple(_differences(settings(first), settings(second)))
    obstacles = (*_within("A", a), *_within("B", b), *_between(first, second, config))
    rates = [_rates(group) for group in (a, b)]
    steps = [[r["result"]["samples_per_step"] / r["result"]["throughput"] for r in group] for group in (a, b)]
    places = (_place(first), _place(second))
    near = [group for group in around if _place(group[0]) in places]
    noise = stats.noise(list(dict.fromkeys(tuple(_rates(group)) for group in (*near, a, b))))
    return Comparison(
        cells=(first["cell"], second["cell"]),
        names=(records.cell_of(first).label, records.cell_of(second).label),
        rounds=(len(a), len(b)),
        seconds=(float(np.mean(steps[0])), float(np.mean(steps[1]))),
        ratio=float(np.mean(steps[1]) / np.mean(steps[0])),
        interval=ratio_interval(steps[1], steps[0]),
        noise=noise,
        verdict=_verdict(first["source"], rates, noise, bool(obstacles)),
        obstacles=obstacles,
        differences=(*config, *_differences(_origin(first), _origin(second))),
    )


def _rates(group: Sequence[Record]) -> list[float]:
    return [record["result"]["throughput"] for record in group]


def _place(record: Record) -> tuple[str, dict[str, Any]]:
    own = settings(record)
    return record["source"], {key: own[key] for key in own if key.partition(".")[0] not in ("algo", "run")}


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of the means; with fewer than three values on a side, the ratio twice."""
    ratio = float(np.mean(above) / np.mean(below))
    if min(len(above), len(below)) < 3:
        return ratio, ratio
    rng = np.random.default_rng(0)
    means = [rng.choice(np.asarray(values), (_RESAMPLES, len(values))).mean(1) for values in (above, below)]
    low, high = np.quantile(means[0] / means[1], (0.025, 0.975))
    return float(low), float(high)


def _verdict(source: str, rates: Sequence[Sequence[float]], noise: float, obstacles: bool) -> str:
    a, b = rates
    if obstacles:
        return "no claim: they are not comparable"
    if source == "simulated":
        return "no claim: rounds of a simulation are all alike"
    if min(len(a), len(b)) < ROUNDS:
        return f"no claim: {len(a)} and {len(b)} rounds, and a claim takes {ROUNDS}"
    if stats.is_faster(b, a, noise):
        return "B is faster"
    return "A is faster" if stats.is_faster(a, b, noise) else "no significant difference"


def _differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys((*a, *b)):
        if a.get(key) != b.get(key):
            yield key, a.get(key), b.get(key)


def _origin(record: Record) -> dict[str, Any]:
    """What a number was measured on, but for the configuration."""
    code, machine, git = record["code"], record["machine"], record["code"]["git"] or {}
    own = {key: machine.get(key) for key in ("fingerprint", "processor", "cores", "memory", "gpus", "kernel", "python")}
    return {
        "source": record["source"],
        "code.commit": git.get("commit"),
        "code.diff": git.get("diff"),
        **{f"code.{key}": code[key] for key in ("sources", "algo", "task")},
        **{f"machine.{key}": value for key, value in own.items()},
        **{f"machine.packages.{key}": value for key, value in machine["packages"].items()},
        **{f"environment.{key}": value for key, value in record["environment"].items()},
        "samples_per_step": record["result"]["samples_per_step"],
        "parameters": record["result"]["parameters"],
    }


def _within(name: str, group: Sequence[Record]) -> Iterator[str]:
    try:
        records.comparable(group, ())
    except ValueError as error:
        yield f"{name}'s own {str(error).partition(', which')[0]}"


def _between(a: Record, b: Record, config: Sequence[Difference]) -> Iterator[str]:
    """The rules of `records.comparable` where the settings that differ, or else the code, are what is compared."""
    own, other = _origin(a), _origin(b)
    for key in ("source", "samples_per_step", "parameters"):
        if own[key] != other[key]:
            yield f"{key.replace('_', ' ')}: {own[key]} and {other[key]}"
    for key, mine, its in config:
        if key in _OTHER_WORK:
            yield f"{key}: {mine} and {its}"
    if own["machine.fingerprint"] != other["machine.fingerprint"]:
        yield "they ran on different machines"
    if a["machine"]["packages"] != b["machine"]["packages"]:
        yield "versions of packages differ"
    if config and any(_same_class(part, a, b) and own[f"code.{part}"] != other[f"code.{part}"] for part in _PARTS):
        yield "the code differs as well as the settings"


_PARTS = ("sources", "algo", "task")


def _same_class(part: str, a: Record, b: Record) -> bool:
    """Whether a part of the code is the same one on both sides: two algorithms have different code anyway."""
    return part == "sources" or a["config"][part]["_target_"] == b["config"][part]["_target_"]
