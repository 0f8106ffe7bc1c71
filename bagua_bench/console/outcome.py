"""What the user sees of a run that has ended: a table, or one line if there are many runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import LINK_KEYS, shape_of
from bagua_bench.console.display import CONSOLE
from bagua_bench.machine.scale import scale_model
from bagua_bench.results import records
from bagua_bench.results.phases import PHASES
from bagua_bench.results.records import Record

_BINARY = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20}


def show(record: Record, path: Path | None) -> None:
    """Print the table of a finished run, or why it failed; and where its record is, if it is there."""
    cell = records.cell_of(record)
    name = f"{cell.task.name} / {cell.algo.name}"
    if record["result"] is None:
        CONSOLE.print(f"[red]failed[/red]: {name}: {escape(record['reason'])}", soft_wrap=True)
    else:
        CONSOLE.print(_table(name, cell, record))
        if record["status"] == "wrong":
            CONSOLE.print(f"[red]wrong[/red]: {escape(record['reason'])}", soft_wrap=True)
    trace = (record["result"] or {}).get("trace")
    if path is not None and trace and (path.parent / trace).exists():
        CONSOLE.print(f"trace: {path.parent / trace} (open it in ui.perfetto.dev)", soft_wrap=True)
    if path is not None:
        CONSOLE.print(f"record: {path} (cell {record['cell']}, status {record['status']})", soft_wrap=True)


def _table(name: str, cell: Cell, record: Record) -> Table:
    title = f"{name}, scale {cell.task.scale}, {record['ranks']} ranks, {record['source']}"
    if cell.shrink != 1:
        title += f", scale model 1 : {cell.shrink:g}"
    if cell.haste != 1:
        title += f", run {cell.haste:g} times as quick"
    table = Table(title=title, show_header=False)
    for row in _rows(cell, record):
        table.add_row(*row)
    return table


def _rows(cell: Cell, record: Record) -> Iterator[tuple[str, str]]:
    result = record["result"]
    low, high = result["throughput_interval"]
    interval = f"  (95 %: {low:.4g} ... {high:.4g})" if low < high else ""
    scaled = ", of the scale model" if cell.shrink != 1 else ""
    yield "throughput", f"{result['throughput']:.4g} samples/s{interval}"
    total = sum(result["step_seconds"]) / len(result["step_seconds"])
    yield "step", f"{units.duration(total)}, the slowest rank's, mean of {len(result['step_seconds'])}"
    for phase in PHASES:
        label = "exposed communication" if phase == "communication" else phase
        yield f"  {label}", f"{units.duration(result['phase_seconds'][phase])}, mean over ranks"
    yield "sent", _traffic(result["bytes_per_step"], result.get("rank_counts")) + scaled
    if sending := result.get("sending"):
        yield "buckets", _sending(sending)
    if imbalance := result.get("imbalance"):
        yield "imbalance", f"{imbalance:.4g}, the largest work of a rank over the mean, mean of the steps"
    if early := _warm_up(cell):
        yield "algorithm", f"[yellow]{early}[/yellow]"
    if samples := result["samples_per_epoch"]:
        yield "epoch", f"{units.duration(result['epoch_seconds'])} for {samples:,} samples, projected"
    if record["source"] != "simulated":
        yield "peak memory", f"{max(result['peak_memory']) / 1e9:.2f} GB per rank"
    if record["source"] == "simulated" or record["network"]["measured"]:
        yield "network", _network(cell, record["network"]["measured"])
    if flags := records.disturbed(record):
        yield "machine", "\n".join(f"[yellow]{flag}[/yellow]" for flag in flags)
    if elastic := result.get("elastic"):
        yield "elastic", _elastic(elastic)
    if result.get("averaging"):
        yield "averaging", _averaging(result["averaging"])
    if record["source"] == "measured":
        yield "learning", _learning(result)
    else:
        yield "computing", f"{record['source']}; time of a step from {result['emulation']['step_seconds_from']}"


def _sending(sending: dict[str, Any]) -> str:
    """'27 of 20 MiB or more, 2 channels'."""
    size, channels = sending["bucket_size"], sending["channels"]
    closed = "" if size is None else f", closed at {units.amount(size, _BINARY)}"
    return f"{sending['buckets']}{closed}; {channels} channel{'s' * (channels > 1)}"


def _elastic(found: dict[str, Any]) -> str:
    """The lives of the run, and what ended each."""
    first = found["lives"][0]
    lines = [f"steps {first['first']} to {first['last']} on {first['ranks']} ranks"]
    for event, life in zip(found["interruptions"], found["lives"][1:], strict=True):
        again = f"{event['repeated']} steps again, the next one after {units.duration(event['seconds'])}"
        lines.append(f"{event['event']}: {again}")
        lines.append(f"steps {life['first']} to {life['last']} on {life['ranks']} ranks")
    return "\n".join(lines)


def _learning(result: dict[str, Any]) -> str:
    data = "synthetic data" if result["synthetic"] else "real data"
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in result["metrics"].items())
    return f"loss {result['losses'][0]:.4g} -> {result['losses'][-1]:.4g}; {metrics} ({data})"


def _warm_up(cell: Cell) -> str:
    """How many timed steps are warm-up, unlike the algorithm's later steps; empty if none."""
    declared, run = facts.algorithm(cell.algo), cell.run
    timed = declared.whole(run.steps)
    early = min(max(declared.warm_up - run.untimed, 0), timed)
    if not early:
        return ""
    keys = f"its first {declared.warm_up}; run.untimed={run.untimed}"
    return f"{early} of {timed} steps are {declared.title}'s warm-up, uncompressed all-reduce ({keys})"


def _network(cell: Cell, found: dict[str, Any] | None) -> str:
    """The requested network, measured ranges over the pairs of servers, and where the two disagree."""
    lines = [f"asked: {asked(cell)}"]
    if cell.shrink != 1 or cell.haste != 1:
        lines.append(f"in the scale model: {asked(scale_model(cell))}")
    if found:
        lines.append(f"measured: {measured(found)} ({found['backend']}){_limits(cell)}")
        lines += (f"[yellow]{flag}[/yellow]" for flag in found["flags"])
    return "\n".join(lines)


def _limits(cell: Cell) -> str:
    """What holds single connections back, where it is not the links."""
    shape = shape_of(scale_model(cell))
    pairs = combinations(range(len(shape.links)), 2)
    found = sorted({limit for a, b in pairs if (limit := shape.limit(a, b))})
    return f"; one connection: held back by {', '.join(found)}" if found else ""


def measured(found: dict[str, Any]) -> str:
    """Range of what the probes of a record's network saw: '96.5 Mbit/s ... 386 Mbit/s, round trip ...'."""
    probed = [pair for when in ("before", "after") for pair in found[when] or ()]
    if not probed:
        return "nothing"
    rates, times = (sorted(pair[key] for pair in probed) for key in ("goodput", "rtt"))
    between = f"{units.amount(rates[0], units.RATES)} ... {units.amount(rates[-1], units.RATES)}"
    return f"{between}, round trip {units.duration(times[0])} ... {units.duration(times[-1])}"


def asked(cell: Cell) -> str:
    """The network that a cell asks for: '400 Mbit/s, 5 ms one way'."""
    nothing = "no limits" if cell.mode == "simulate" else "as it is"
    parts = [_link({key: getattr(cell.network, key) for key in LINK_KEYS}) or nothing]
    if flows := ", ".join(units.amount(rate, units.RATES) for rate in cell.network.flow_rates):
        parts.append(f"single connections {flows}")
    if cell.network.sites > 1:
        between = _link({key: getattr(cell.network.wan, key) for key in LINK_KEYS}) or "no limits"
        parts.append(f"{cell.network.sites} sites, between them {between}")
    parts += (f"server {number}: {_link(link)}" for number, link in cell.cluster.server.items())
    return "; ".join(parts)


def _link(link: Mapping[str, float | None]) -> str:
    rate, latency, jitter, loss = (link.get(key) for key in LINK_KEYS)
    parts = [units.amount(rate, units.RATES)] if rate else []
    parts += [f"{units.duration(latency)} one way"] if latency else []
    parts += [f"jitter {units.duration(jitter)}"] if jitter else []
    parts += [f"{100 * loss:.3g} % lost"] if loss else []
    return ", ".join(parts)


def _averaging(found: dict[str, Any]) -> str:
    if not found["rounds"]:
        return "no round was applied within the steps taken"
    every = f", one every {units.duration(found['round_seconds'])}" if found["round_seconds"] else ""
    return f"{found['rounds']} rounds{every}; what they apply is {found['staleness_steps']:.3g} steps old"


def _traffic(ranks: list[dict[str, float]], counts: list[float] | None) -> str:
    parts = {level: fmean([rank[level] for rank in ranks], counts) for level in ("flat", "intra", "inter")}
    names = {"flat": "", "intra": " inside servers", "inter": " between servers"}
    shown = [f"{units.amount(value, units.SIZES)}{names[level]}" for level, value in parts.items() if value]
    return f"{' + '.join(shown) or 'nothing'} per step and rank"


def show_line(name: str, record: Record) -> None:
    """Print on one line how one of many runs ended."""
    if record["status"] == "done":
        result = record["result"]
        step = units.duration(fmean(result["step_seconds"]))
        waited = units.duration(result["phase_seconds"]["communication"])
        text = f"{result['throughput']:.4g} samples/s {record['source']}, step {step}, exposed communication {waited}"
        text += "".join(f"; [yellow]{flag}[/yellow]" for flag in records.disturbed(record))
    else:
        text = f"[red]{record['status']}[/red]: {escape(record['reason'])}"
    CONSOLE.print(f"{escape(name)}: {text}", soft_wrap=True)


def show_end(before: int, path: Path) -> None:
    """Print where the records of many runs are; `before` of the runs had been done before."""
    CONSOLE.print(f"records: {path}" + (f" ({before} were done before)" if before else ""), soft_wrap=True)
