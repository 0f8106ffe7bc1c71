"""What the user sees before and during a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bagua_bench.configuration import network_settings, units
from bagua_bench.configuration.cell import Cell, Job
from bagua_bench.configuration.identity import flatten
from bagua_bench.configuration.network_shape import LINK_KEYS

CONSOLE = Console(highlight=False)

_EVERY = 30.0  # seconds between two lines about a phase, without a terminal


@contextmanager
def watching(title: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a progress bar, or without a terminal an occasional line; yields a function that takes a run's events."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
    with Progress(*columns, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal) as progress:
        bar = progress.add_task(f"{title}: starting", total=None, news="")
        pace, said = Pace(), 0.0

        def watch(event: dict[str, Any]) -> None:
            nonlocal said
            description, now = f"{title}: {event['phase']}", time.monotonic()
            begins = pace.note(event, now)
            news = _news(event, pace.left(event, now)) if "step" in event else ""
            if not CONSOLE.is_terminal and (begins or now > said + _EVERY):
                print(f"{description}, {news}" if news and not begins else description, file=sys.stderr, flush=True)
                said = now
            done, total = event.get("step", 0), event.get("steps")
            progress.update(bar, description=description, completed=done, total=total, news=news)

        yield watch


class Pace:
    """How fast a run takes the steps of its phase, from the times of their events."""

    def __init__(self) -> None:
        self._phase, self._began, self._first = "", 0.0, 0

    def note(self, event: dict[str, Any], now: float) -> bool:
        """Note an event; returns whether a phase begins with it. `now` is in seconds."""
        if event["phase"] == self._phase:
            return False
        self._phase, self._began, self._first = event["phase"], now, event.get("step", 0)
        return True

    def left(self, event: dict[str, Any], now: float) -> float | None:
        """Seconds that the phase will still take; None if unknown."""
        taken: int = event["step"] - self._first
        if "steps" not in event or not taken:
            return None
        rest: int = event["steps"] - event["step"]
        return (now - self._began) / taken * rest


def _news(event: dict[str, Any], seconds: float | None) -> str:
    step = f"step {event['step']}/{event['steps']}" if "steps" in event else f"step {event['step']}"
    return f"{step}, {left(seconds)}loss {event['loss']:.4g}, {event['rate']:.4g} samples/s"


@contextmanager
def counting(total: int) -> Iterator[Callable[[str], None]]:
    """Show how many of `total` runs are done and the time the rest will take; yields a function (description)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        yield lambda description: progress.update(bar, advance=1, description=description)


def left(seconds: float | None) -> str:
    """How long the rest will take, as text; empty if it is unknown or zero."""
    return f"{units.duration(max(1, round(seconds)))} left, " if seconds else ""


def show_plan(jobs: Sequence[Job], todo: Sequence[Job], seconds: float | None) -> None:
    """Print every cell of a campaign by what distinguishes it, and how many of its rounds are done."""
    told = _telling([job.cell for job in jobs])
    table = Table(*next(iter(told.values())), "rounds done")
    for name, facts in told.items():
        rounds = [job.round for job in jobs if job.cell.id == name]
        to_do = sum(job.cell.id == name for job in todo)
        table.add_row(*facts.values(), f"{len(rounds) - to_do} of {len(rounds)}")
    CONSOLE.print(table)
    rest = "unknown before the first of them has run" if seconds is None else f"about {units.duration(seconds)}"
    CONSOLE.print(f"{len(todo)} runs to do; time: {rest}")


def names(cells: Sequence[Cell]) -> dict[str, str]:
    """For every cell's id, what distinguishes it from the others: 'algo.name=ddp network.bandwidth=10gbit'."""
    labels = {cell.id: cell.label for cell in cells}
    told = {
        name: " ".join(f"{key}={value}" for key, value in facts.items() if value)
        for name, facts in _telling(cells).items()
    }
    return {name: told[name] or labels[name] for name in labels}


def _telling(cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """For every cell's id, the keys in which the cells differ, without those that follow from their group's name."""
    flat = {cell.id: flatten(cell.to_json()) for cell in cells}
    known = dict.fromkeys(key for facts in flat.values() for key in facts)
    keys = [key for key in known if _differs(key, list(flat.values()))]
    return {name: {key: shown(key, facts[key]) if key in facts else "" for key in keys} for name, facts in flat.items()}


def _differs(key: str, cells: Sequence[Mapping[str, Any]]) -> bool:
    name = f"{key.partition('.')[0]}.name"
    seen = {(facts.get(name) if key != name else None, json.dumps(facts.get(key))) for facts in cells}
    return len(seen) > len({option for option, _ in seen})


def shown(key: str, value: Any) -> str:
    """The value of a cell's key for people, with its unit where it is a link's."""
    group, _, name = key.partition(".")
    return network_settings.text(name, value) if group == "network" and name in LINK_KEYS and value else str(value)
