"""What the user sees while a run goes on and when it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bagua_bench.cell import cell_id, flatten
from bagua_bench.network import settings
from bagua_bench.network.shape import LINK_KEYS
from bagua_bench.plan import Job
from bagua_bench.records import Record
from bagua_bench.training.phases import PHASES

CONSOLE = Console(highlight=False)


@contextmanager
def watching(title: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a progress bar, or where there is no terminal a line per phase; yields what takes a run's events."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[news]}"))
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        bar = progress.add_task(f"{title}: starting", total=None, news="")
        phase = ""

        def watch(event: dict[str, Any]) -> None:
            nonlocal phase
            description = f"{title}: {event['phase']}"
            if event["phase"] != phase and not CONSOLE.is_terminal:
                print(description, file=sys.stderr, flush=True)
            phase = event["phase"]
            if "step" not in event:
                progress.update(bar, description=description, news="")
                return
            news = f"loss {event['loss']:.4g}  {event['rate']:.4g} samples/s"
            total = event["steps"] if event["phase"] == "timed" else None
            progress.update(bar, description=description, completed=event["step"], total=total, news=news)

        yield watch


@contextmanager
def counting(total: int) -> Iterator[Callable[[str], None]]:
    """Show how many of `total` runs are done and the time the rest will take; yields a function (description)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield lambda description: progress.update(bar, advance=1, description=description)


def duration(seconds: float | None) -> str:
    """How long the rest will take, for people; empty where it is not known."""
    return "" if seconds is None else f"{_seconds(seconds)} left, "


def show_plan(jobs: Sequence[Job], todo: Sequence[Job], seconds: float | None) -> None:
    """Print every cell of a campaign by what tells it from the others, and how many of its rounds are done."""
    cells = {cell_id(job.cell): job.cell for job in jobs}
    flat = {name: flatten(cell) for name, cell in cells.items()}
    keys = [k for k in next(iter(flat.values())) if len({json.dumps(facts.get(k)) for facts in flat.values()}) > 1]
    keys = [k for k in keys if all(k in facts for facts in flat.values()) and not k.endswith("._target_")]
    table = Table(*keys, "rounds done")
    for name, facts in flat.items():
        rounds = [job.round for job in jobs if cell_id(job.cell) == name]
        left = sum(cell_id(job.cell) == name for job in todo)
        shown = [_shown(key, facts.get(key, "")) for key in keys]
        table.add_row(*shown, f"{len(rounds) - left} of {len(rounds)}")
    CONSOLE.print(table)
    time = "unknown before the first of them has run" if seconds is None else f"about {_seconds(seconds)}"
    CONSOLE.print(f"{len(todo)} runs to do; time: {time}")


def _shown(key: str, value: Any) -> str:
    group, _, name = key.partition(".")
    return settings.text(name, value) if group == "network" and name in LINK_KEYS and value else str(value)


def show(record: Record, path: Path) -> None:
    """Print the table of a finished run, or why it failed."""
    name = f"{record['config']['task']['name']} / {record['config']['algo']['name']}"
    if record["result"] is None:
        CONSOLE.print(f"[red]failed[/red]: {name}: {record['reason']}", soft_wrap=True)
    else:
        CONSOLE.print(_table(name, record))
        if record["status"] == "wrong":
            CONSOLE.print(f"[red]wrong[/red]: {record['reason']}", soft_wrap=True)
    CONSOLE.print(f"record: {path} (cell {record['cell']}, status {record['status']})", soft_wrap=True)


def _table(name: str, record: Record) -> Table:
    result, config = record["result"], record["config"]
    scale = config["task"].get("scale", "")
    table = Table(title=f"{name}, scale {scale}, {record['ranks']} ranks, {record['source']}", show_header=False)
    low, high = result["throughput_interval"]
    interval = f"  (95 %: {low:.4g} ... {high:.4g})" if low < high else ""
    table.add_row("throughput", f"{result['throughput']:.4g} samples/s{interval}")
    total = sum(result["step_seconds"]) / len(result["step_seconds"])
    table.add_row("step", f"{_seconds(total)}, the slowest rank's, mean of {len(result['step_seconds'])}")
    for phase in PHASES:
        label = "exposed communication" if phase == "communication" else phase
        table.add_row(f"  {label}", f"{_seconds(result['phase_seconds'][phase])}, mean over ranks")
    table.add_row("sent", _traffic(result["bytes_per_step"], result.get("rank_counts")))
    if early := _warm_up(config):
        table.add_row("algorithm", f"[yellow]{early}[/yellow]")
    table.add_row(
        "epoch", f"{_seconds(result['epoch_seconds'])} for {result['samples_per_epoch']:,} samples, projected"
    )
    if record["source"] != "simulated":
        table.add_row("peak memory", f"{max(result['peak_memory']) / 1e9:.2f} GB per rank")
    if record["network"]["measured"]:
        table.add_row("network", _network(record["network"]["measured"]))
    if record["source"] != "measured":
        table.add_row(
            "computing", f"{record['source']}; time of a step from {result['emulation']['step_seconds_from']}"
        )
        if "averaging" in result:
            table.add_row("averaging", _averaging(result["averaging"]))
        return table
    data = "synthetic data" if result["synthetic"] else "real data"
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in result["metrics"].items())
    table.add_row("learning", f"loss {result['losses'][0]:.4g} -> {result['losses'][-1]:.4g}; {metrics} ({data})")
    return table


def _warm_up(config: dict[str, Any]) -> str:
    """How many timed steps say nothing of what the algorithm does later; empty if none."""
    algo, run = config["algo"], config["run"]
    early = min(max(algo.get("warmup_steps", 0) - run["untimed"], 0), run["steps"])
    if not early:
        return ""
    keys = f"algo.warmup_steps={algo['warmup_steps']}, run.untimed={run['untimed']}"
    return f"{early} of {run['steps']} steps are {algo['name']}'s warm-up, uncompressed all-reduce ({keys})"


def _network(measured: dict[str, Any]) -> str:
    """Measured ranges over the pairs of servers, and where they are not what was asked for."""
    probed = [pair for when in ("before", "after") for pair in measured[when] or ()]
    rates = sorted(pair["goodput"] / 1e6 for pair in probed)
    times = sorted(pair["rtt"] * 1e3 for pair in probed)
    found = f"{measured['backend']}: {rates[0]:.4g} ... {rates[-1]:.4g} Mbit/s, "
    found += f"round trip {times[0]:.3g} ... {times[-1]:.3g} ms, as measured"
    return "\n".join([found, *(f"[yellow]{flag}[/yellow]" for flag in measured["flags"])])


def _averaging(found: dict[str, float]) -> str:
    if not found["rounds"]:
        return "no round was applied within the steps taken"
    every, stale = _seconds(found["round_seconds"]), found["staleness_steps"]
    return f"a round every {every}; what it applies is {stale:.3g} steps old"


def _traffic(ranks: list[dict[str, float]], counts: list[float] | None) -> str:
    parts = {level: fmean([rank[level] for rank in ranks], counts) for level in ("flat", "intra", "inter")}
    names = {"flat": "", "intra": " inside servers", "inter": " between servers"}
    shown = [f"{value / 1e6:.4g} MB{names[level]}" for level, value in parts.items() if value] or ["0 MB"]
    return " + ".join(shown) + " per step and rank"


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.4g} min"
    return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.4g} ms"
