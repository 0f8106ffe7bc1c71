"""Advice as text: what was assumed, the answer, a table per kind of algorithm, and what the tables do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from bagua_bench.advise import intervals, reasons
from bagua_bench.advise.assumptions import assumptions, transports
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.units import BYTES, duration, durations, text
from bagua_bench.configuration.variants import algorithm_part

LEGEND = """\
algorithm  a name for algo=
between    what the algorithm connects: all ranks, or one rank of every server after a sum inside the server
transport  a name for transport=
bucket     the best of the bucket sizes tried (run.bucket_size=, DDP's algo.bucket_cap_mb=); some use one bucket
channels   the best number of buckets under way at a time (run.channels=)
step       simulated time of a step, mean over a training, with the warm-up that an algorithm needs
epoch      simulated time for all samples of the task
x DDP      throughput over that of DDP, PyTorch's default, with the best of its bucket sizes
why        the bottleneck. "bandwidth-bound: 82% of 95% waiting" means that 95 % of a step's time is waiting, and
           an ideal bandwidth would save 82 %; "window-bound": TCP windows are most of what latency costs"""

_SAME = "learning what DDP learns"
_OTHER = "learning something else: compare accuracy before choosing"
_LARGER = 16.0  # times as large TCP windows


def report(table: pd.DataFrame, base: Cell, refused: Mapping[str, str] | None = None) -> str:
    """The advice for the cell `base`, from the `table` of `ranking.advise`; `refused`: who cannot run, and why."""
    best, line = transports(table.drop_duplicates(["algorithm", "transport"]), base)
    ddp = table[table["algorithm"] == facts.baseline()]
    best = best.assign(times_ddp=ddp["step_seconds"].min() / best["step_seconds"], why=best["cell"].map(reasons.why))
    parts = [f"{assumptions(base)}\n{line}", headline(best)]
    parts += [_group(title, best[best["same_update"] == same]) for title, same in ((_SAME, True), (_OTHER, False))]
    parts += ["\n".join(f"not compared: {why}" for why in (refused or {}).values())]
    return "\n\n".join(part for part in parts if part)


def headline(best: pd.DataFrame) -> str:
    """The fastest of those that learn what DDP learns, and what learning something else would buy."""
    same, other = (best[best["same_update"] == kind].drop_duplicates("algorithm") for kind in (True, False))
    first = same.iloc[0]
    ddp = best[best["algorithm"] == facts.baseline()]
    beside = ddp.iloc[0] if len(ddp) else same.iloc[-1]  # what is asked for may be nothing that DDP has
    share = intervals.share_of_ratio(first["cell"], beside["cell"])
    compared = _compared(first, share)
    lines = [f"fastest of those that learn what DDP learns: {_chosen(first)}, {compared}{_tied(same, share)}"]
    faster = other[other["step_seconds"] < first["step_seconds"]]
    if len(faster):
        lines.append(
            f"faster, but learning something else: {', '.join(_brief(row) for row in faster.to_dict('records'))}"
        )
    return "\n".join([*lines, *_windows(first)])


def _chosen(row: Any) -> str:
    """'bytegrad over gloo with buckets of 10 MiB and 4 channels'."""
    transport = f" over {row['transport']}" if row.get("transport") else ""
    buckets = f" with buckets of {row['bucket']}" if "MiB" in row["bucket"] else ""
    several = f" and {row['channels']} channel{'s' * (row['channels'] != '1')}" if row["channels"] else ""
    return f"{row['algorithm']}{transport}{buckets}{several}"


def _compared(row: Any, share: float) -> str:
    if row["algorithm"] == facts.baseline():
        return "than which nothing is faster"
    if math.isnan(row["times_ddp"]):
        return f"{duration(row['step_seconds'])} a step; DDP cannot be run so"
    low, high = _times(row["times_ddp"] / (1 + share)), _times(row["times_ddp"] * (1 + share))
    return f"{_times(row['times_ddp'])} times DDP ({low} to {high})"


def _brief(row: Any) -> str:
    late = row["staleness_steps"]
    age = "" if math.isnan(late) else " whose averages never come" if math.isinf(late) else f", {late:.3g} steps stale"
    gain = duration(row["step_seconds"]) if math.isnan(row["times_ddp"]) else _times(row["times_ddp"])
    return f"{row['algorithm']}{age} ({gain})"


def _tied(rows: pd.DataFrame, share: float) -> str:
    """Which others are as fast within the uncertainty."""
    first = rows.iloc[0]
    near = rows[rows["step_seconds"] <= first["step_seconds"] * (1 + share)]["algorithm"].unique()[1:]
    return f"; as fast within the model's uncertainty: {', '.join(near)}" if len(near) else ""


def _windows(row: Any) -> Iterator[str]:
    """What larger TCP windows would do, where these are what is waited for."""
    cell: Cell = row["cell"]
    if row["why"].startswith("window"):
        larger = text(int(cell.network.tcp_window * _LARGER), BYTES)
        seconds = duration(reasons.with_windows(cell, _LARGER))
        yield (
            f"TCP windows are what is waited for: with network.tcp_window={larger} a step takes {seconds} instead of "
            f"{duration(row['step_seconds'])}; more servers help, too, as each has its own connections"
        )


def _group(title: str, rows: pd.DataFrame) -> str:
    return "\n".join([title, _table(rows), *_notes(rows)]) if len(rows) else ""


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:.0f}"


def _table(rows: pd.DataFrame) -> str:
    shown = {
        "algorithm": rows["algorithm"],
        "between": rows["between"],
        **({"transport": rows["transport"]} if "transport" in rows else {}),
        "bucket": rows["bucket"],
        "channels": rows["channels"],
        "step": durations(list(rows["step_seconds"])),
        "epoch": durations(list(rows["epoch_seconds"])),
        **({} if rows["times_ddp"].isna().all() else {"x DDP": rows["times_ddp"].map(_times)}),
        "why": rows["why"],
    }
    return str(pd.DataFrame(shown).to_string(index=False))


def _notes(rows: pd.DataFrame) -> Iterator[str]:
    """What a row does not say about its algorithm, one line each."""
    for row in rows.drop_duplicates("algorithm").itertuples():
        if row.note:
            yield f"{row.algorithm}: {row.note}"
        if row.warm_up:
            yield f"{row.algorithm}: {row.warm_up:.0%} of the steps are its warm-up, uncompressed and needed to learn"
        if math.isinf(row.staleness_steps):
            yield f"{row.algorithm}: no average arrives within {row.steps} steps; every rank learns alone"
        elif row.staleness_steps >= 0:
            yield (
                f"{row.algorithm}: never waits; an average comes every {duration(row.round_seconds)} and is then "
                f"{row.staleness_steps:.3g} steps old"
            )
        if options := _searched(row.cell):
            yield f"{row.algorithm}: with {options}, which is faster here than its own"


def _searched(cell: Cell) -> str:
    """Options other than the algorithm's own that only make it faster; 'algo.bucket_cap_mb=100'."""
    own = algorithm_part(cell.algo.name).options
    keys = {choice.partition("=")[0] for choices in facts.algorithm(cell.algo).search for choice in choices}
    changed = [key for key in sorted(keys) if cell.algo.options[key] != own[key]]
    return " ".join(f"algo.{key}={cell.algo.options[key]:g}" for key in changed)
