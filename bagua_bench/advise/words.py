"""Advice as text: what was assumed, a table per kind of algorithm, and what the tables do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from bagua_bench.advise.ranking import available
from bagua_bench.configuration import facts, network_settings
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.units import RATES, amount, duration
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.cluster import cluster_of

LEGEND = """\
algorithm  a name for algo=
between    what the algorithm connects: all ranks, or one rank of every server after a sum inside the server
transport  a name for transport=
bucket     the best of the bucket sizes tried (run.bucket_size=); DDP has its own, and some algorithms use one bucket
channels   the best number of buckets under way at a time (run.channels=)
step       simulated time of a step, mean over a training, with the warm-up that an algorithm needs
epoch      simulated time for all samples of the task
x DDP      throughput over that of DDP, PyTorch's default
why        the bottleneck. "bandwidth-bound: 82% of 95% waiting" means that 95 % of a step's time is waiting, and
           an ideal bandwidth would save 82 %"""

_SAME = "learning what DDP learns"
_OTHER = "changing what is learned: compare accuracy before choosing"


def report(table: pd.DataFrame, base: Cell) -> str:
    """The whole advice for the cell `base`, from the `table` of `ranking.advise`."""
    best, line = transports(table.drop_duplicates(["algorithm", "transport"]), base)
    best = best.assign(
        times_ddp=best[best["algorithm"] == facts.baseline()]["step_seconds"].min() / best["step_seconds"]
    )
    parts = [f"{assumptions(base)}\n{line}"]
    parts += [_group(title, best[best["same_update"] == same]) for title, same in ((_SAME, True), (_OTHER, False))]
    return "\n\n".join(part for part in parts if part)


def assumptions(cell: Cell) -> str:
    """One line: task, cluster, computing, network, and how the model of the cluster was calibrated."""
    cluster, compute = cluster_of(cell), compute_of(cell, layers_of(cell.task, cell.shrink))
    network, physics, layout = cluster.network, cluster.physics, cluster.layout
    rate = amount(8 * (network.line or physics.line), RATES)
    late = f"latency {duration(network.latency)} + {duration(physics.latency)} of the cluster"
    also = [
        f"{key} {network_settings.text(key, getattr(network, key))}"
        for key in ("jitter", "loss")
        if getattr(network, key)
    ]
    where = f"{layout.servers} servers x {layout.per_server} rank{'s' * (layout.per_server > 1)}"
    return "; ".join(
        [
            f"{cell.task.name}, batch {cell.task.batch}, {where}",
            f"{duration(compute.step * cell.haste)} of computing ({compute.origin}){_stragglers(cell)}",
            ", ".join([rate, late, *also]),
            f"cluster={cell.cluster.name}, {_calibration(cell)}",
        ]
    )


def _stragglers(cell: Cell) -> str:
    return "".join(f", {factor:g} times as long on rank {rank}" for rank, factor in cell.cluster.slow_ranks.items())


def _calibration(cell: Cell) -> str:
    share = cluster_of(cell).physics.uncertainty
    if "uncertainty" not in cell.cluster.physics:
        return f"not calibrated: ±{share:.0%} assumed"
    return f"calibrated: 9 of 10 steps within ±{share:.0%}"


def transports(best: pd.DataFrame, cell: Cell) -> tuple[pd.DataFrame, str]:
    """The rows to show, and one line on the transports: if they do not differ, each algorithm is shown once."""
    names, rest = list(best["transport"].unique()), _not_compared(cell)
    spread = best.groupby("algorithm")["step_seconds"].agg(["min", "max"])
    if not np.allclose(spread["min"], spread["max"]):
        return best, f"transports compared: {', '.join(names)}{rest}"
    line = f"transport: {names[0]}{rest}"
    if len(names) > 1:
        line = f"transport: no difference between {' and '.join(names)} here, by this model{rest}"
    return best.drop_duplicates("algorithm").drop(columns="transport"), line


def _not_compared(cell: Cell) -> str:
    """Why there are no rows for the other transports; empty if there are rows for all."""
    asked, own = cell.transport.name, cell.cluster.transports
    others = ", ".join(name for name in available("transport") if name not in (asked, *own))
    if not others:
        return ""
    what = "are not modelled" if asked in own else f"are modelled as {asked}"
    known = f"transport parameters for {', '.join(own)} only" if own else "no transport parameters"
    return f"; {others} {what}: cluster={cell.cluster.name} has {known}"


def _group(title: str, rows: pd.DataFrame) -> str:
    return "\n".join([title, _table(rows), _fastest(rows), *_notes(rows)]) if len(rows) else ""


def _fastest(rows: pd.DataFrame) -> str:
    """The fastest of a group; if its averages come late or never, also the fastest that meets in every step."""
    first = rows.iloc[0]
    near = rows[rows["step_seconds"] <= first["step_seconds"] * (1 + first["uncertainty"])]["algorithm"].unique()[1:]
    tied = f"; within the model's uncertainty of it: {', '.join(near)}" if len(near) else ""
    line = f"fastest: {first['algorithm']}, {_times(first['times_ddp'])} times DDP{tied}"
    meeting = rows[rows["staleness_steps"].isna()]
    if math.isnan(first["staleness_steps"]) or meeting.empty:
        return line
    second = meeting.iloc[0]
    return f"{line}; of those that meet in every step: {second['algorithm']}, {_times(second['times_ddp'])}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:.0f}"


def _table(rows: pd.DataFrame) -> str:
    shown = {
        "algorithm": rows["algorithm"],
        "between": rows["between"],
        **({"transport": rows["transport"]} if "transport" in rows else {}),
        "bucket": rows["bucket"],
        "channels": rows["channels"],
        "step": rows["step_seconds"].map(duration),
        "epoch": rows["epoch_seconds"].map(duration),
        "x DDP": rows["times_ddp"].map(_times),
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
